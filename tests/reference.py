"""What `transformers` generate answers to real questions: the truth that the engine's output is compared with.

It takes a while (tens of milliseconds a token), so answers are kept in the cache folder, by everything they depend on.
"""

import fcntl
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jinja2
import tokenizers
import torch
import transformers
from transformers import AutoModelForCausalLM

from worker.model.info import ModelInfo
from worker.model.loading import LoadedModel
from worker.model.sources import cache_folder

_REPOSITORY = Path(__file__).resolve().parents[1]
_GSM8K = _REPOSITORY.parent / "shared" / "data" / "gsm8k" / "test.jsonl"
_COMMITTED = _REPOSITORY / "tests" / "data" / "prompts.json"
_BATCH = 16


@dataclass(frozen=True)
class Reference:
    """One prompt and its greedy continuation in float32, end token included."""

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    margins: tuple[float, ...]  # by how much each token's logit leads the second best; near 0 is a tie


def prompts(count: int) -> list[str]:
    """Return `count` different questions: from GSM8K where it lies beside the repository, else the committed ones."""
    if _GSM8K.is_file():
        lines = _GSM8K.read_text(encoding="utf-8").splitlines()
        questions = [str(json.loads(line)["question"]) for line in lines]
    else:
        questions = json.loads(_COMMITTED.read_text(encoding="utf-8"))
    assert len(set(questions[:count])) == count, f"there are not {count} different prompts"
    return questions[:count]


def chat_token_ids(info: ModelInfo, question: str) -> list[int]:
    """Return the prompt that asks `question` as the user's first message."""
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(info.chat_template)
    text = template.render(
        messages=[{"role": "user", "content": question}], add_generation_prompt=True, **info.special_tokens
    )
    tokenizer = tokenizers.Tokenizer.from_buffer(info.tokenizer_json)
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def greedy_reference(model: LoadedModel, questions: Sequence[str], *, max_new_tokens: int) -> list[Reference]:
    """Return what plain transformers answers to each question, from the cache folder if it was asked before."""
    token_ids = [chat_token_ids(model.info, question) for question in questions]
    asked = [model.info.revision, transformers.__version__, torch.__version__, max_new_tokens, token_ids]
    path = cache_folder() / "reference" / f"{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:32]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Test processes that want the same at the same time: one computes it, the others wait and read.
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.is_file():
            references = _generate_all(model, token_ids, max_new_tokens)
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_text(json.dumps([asdict(reference) for reference in references]), encoding="utf-8")
            unfinished.replace(path)
    return [_reference(**stored) for stored in json.loads(path.read_text(encoding="utf-8"))]


def _generate_all(model: LoadedModel, prompts: Sequence[list[int]], max_new_tokens: int) -> list[Reference]:
    plain: Any = AutoModelForCausalLM.from_pretrained(model.folder.path, dtype=torch.float32, local_files_only=True)
    plain.eval()
    found: dict[int, Reference] = {}
    by_length = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    for begin in range(0, len(prompts), _BATCH):
        members = by_length[begin : begin + _BATCH]
        answers = _generate(plain, [prompts[index] for index in members], max_new_tokens)
        found.update(zip(members, answers, strict=True))
    return [found[index] for index in range(len(prompts))]


def _generate(model: Any, prompts: Sequence[list[int]], max_new_tokens: int) -> list[Reference]:
    """One padded batch: each prompt alone gives the same tokens (it was compared), but takes five times as long."""
    length = max(len(prompt) for prompt in prompts)
    end = int(model.generation_config.eos_token_id)
    padded = torch.tensor([[end] * (length - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    with torch.inference_mode():
        out = model.generate(
            padded,
            attention_mask=mask,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
    best_two = torch.stack(out.logits, dim=1).topk(2).values  # float32[prompts, new tokens, 2]
    margins = (best_two[..., 0] - best_two[..., 1]).tolist()
    return [
        _until_end(prompt, answer, leads, end)
        for prompt, answer, leads in zip(prompts, out.sequences[:, length:].tolist(), margins, strict=True)
    ]


def _until_end(prompt: list[int], answer: list[int], margins: list[float], end: int) -> Reference:
    """What follows an end token is padding."""
    size = answer.index(end) + 1 if end in answer else len(answer)
    return _reference(prompt, answer[:size], margins[:size])


def _reference(prompt_token_ids: list[int], token_ids: list[int], margins: list[float]) -> Reference:
    return Reference(tuple(prompt_token_ids), tuple(token_ids), tuple(margins))
