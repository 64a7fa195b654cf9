import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from worker.model.text import TokenizerTextStreams

SAMPLES = [
    "The quick brown fox, and 12345 other things.\n\n  indented\ttext",
    "👩‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 🇩🇪 and ❤️‍🔥",
    "你好，世界。日本語のテキスト 한국어",
    "مرحبا بالعالم — שלום",
    "नमस्ते दुनिया สวัสดีชาวโลก",
    "literal \ufffd inside, and at the end \ufffd",
    "é e\u0301 \u200d\u200f\x00",
]


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(SAMPLES * 2, trainer)
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return tokenizer


def metaspace() -> Tokenizer:
    """Like a SentencePiece model: a leading space belongs to the word, unknown characters are spelled in bytes."""
    words = ["▁", "▁the", "▁word", "s", "▁is", ".", "a", "b", "▁b"]
    vocab = {
        token: index for index, token in enumerate(["<unk>", "<s>", *words, *(f"<0x{b:02X}>" for b in range(256))])
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    assert found is not None
    return found


BYTE_LEVEL, METASPACE = byte_level(), metaspace()
END = token_id(BYTE_LEVEL, "<|end|>")
NO_PROMPT = np.zeros(0, np.int32)


def deltas(tokenizer: Tokenizer, prompt: list[int], output: list[int], stop: tuple[str, ...] = ()) -> list[str]:
    stream = TokenizerTextStreams(tokenizer).open(np.array(prompt, np.int32), stop)
    return [*(stream.push([token]).text for token in output), stream.flush()]


def streamed(text: str, stop: tuple[str, ...], pieces: list[int]) -> tuple[str, bool]:
    """Stream `text` in pieces of the given numbers of tokens, and the rest at once."""
    tokens = BYTE_LEVEL.encode(text).ids
    stream = TokenizerTextStreams(BYTE_LEVEL).open(NO_PROMPT, stop)
    out, stopped, at = "", False, 0
    for size in [*pieces, len(tokens)]:
        delta = stream.push(tokens[at : at + size])
        at += size
        assert not (stopped and delta.text)
        out, stopped = out + delta.text, delta.stopped
    return out + stream.flush(), stopped


@pytest.mark.parametrize("text", SAMPLES)
def test_the_pieces_of_any_script_add_up_and_none_holds_half_a_character(text: str) -> None:
    pieces = deltas(BYTE_LEVEL, [], BYTE_LEVEL.encode(text).ids)
    assert "".join(pieces) == text
    assert "".join(pieces).count("\ufffd") == text.count("\ufffd")


@settings(max_examples=300)
@given(
    prompt=st.lists(st.integers(0, END), max_size=20),
    output=st.lists(st.integers(0, END) | st.integers(0, 255), max_size=60),
)
def test_the_pieces_of_random_tokens_add_up_to_the_whole(prompt: list[int], output: list[int]) -> None:
    # A prompt that ends inside a character leaves the first one to the output; here it ends on a border.
    prompt = [*prompt, *BYTE_LEVEL.encode(" border").ids]
    whole = BYTE_LEVEL.decode(prompt + output)
    assert "".join(deltas(BYTE_LEVEL, prompt, output)) == whole[len(BYTE_LEVEL.decode(prompt)) :]


def test_a_character_that_the_prompt_began_comes_out_whole() -> None:
    tokens = BYTE_LEVEL.encode("x🜚").ids
    assert len(tokens) > 2
    assert "".join(deltas(BYTE_LEVEL, tokens[:-1], tokens[-1:])) == "🜚"


def test_a_replacement_character_that_ends_the_prompt_stays_there() -> None:
    prompt = BYTE_LEVEL.encode("odd \ufffd").ids
    assert "".join(deltas(BYTE_LEVEL, prompt, BYTE_LEVEL.encode("next").ids)) == "next"


def test_special_tokens_and_ids_without_a_token_give_no_text() -> None:
    tokens = BYTE_LEVEL.encode("a 👩‍👧 b").ids
    noisy = [noise for token in tokens for noise in (END, token, 10_000)]
    assert "".join(deltas(BYTE_LEVEL, [END], noisy)) == "a 👩‍👧 b"


def test_an_unfinished_character_comes_out_at_the_end() -> None:
    tokens = BYTE_LEVEL.encode("ok 🜚").ids
    pieces = deltas(BYTE_LEVEL, [], tokens[:-1])
    assert "\ufffd" not in "".join(pieces[:-1])
    assert "".join(pieces) == "ok \ufffd"


def test_invalid_bytes_are_not_held_back_for_ever() -> None:
    junk = BYTE_LEVEL.encode("🜚").ids[-1]  # a continuation byte
    pieces = deltas(BYTE_LEVEL, [], [junk] * 100)
    assert "".join(pieces) == "\ufffd" * 100
    assert len("".join(pieces[:-1])) >= 90


def test_words_behind_a_prompt_keep_the_space_before_them() -> None:
    the, word, is_ = (token_id(METASPACE, token) for token in ("▁the", "▁word", "▁is"))
    assert deltas(METASPACE, [the], [word, is_]) == [" word", " is", ""]
    assert deltas(METASPACE, [], [word, is_]) == ["word", " is", ""]
    assert deltas(METASPACE, [1, the, 1], [word, 1, is_]) == [" word", "", " is", ""]


@settings(max_examples=200)
@given(output=st.lists(st.integers(1, 10), max_size=30))
def test_the_pieces_of_random_words_add_up_to_the_whole(output: list[int]) -> None:
    assert "".join(deltas(METASPACE, [], output)) == METASPACE.decode(output)


@settings(max_examples=200)
@given(output=st.lists(st.integers(0, METASPACE.get_vocab_size() - 1), max_size=30))
def test_random_bytes_never_fail_and_lose_no_word(output: list[int]) -> None:
    text = "".join(deltas(METASPACE, [], output))
    words = token_id(METASPACE, "▁word")
    assert text.count("word") >= output.count(words)


ALPHABET = st.text(alphabet="ab ", min_size=1, max_size=5)


@settings(max_examples=400)
@given(
    text=st.text(alphabet="ab c👩‍👧", max_size=30),
    stop=st.lists(ALPHABET, min_size=1, max_size=5).map(tuple),
    pieces=st.lists(st.integers(0, 4), max_size=12),
)
def test_stop_strings_cut_at_the_first_that_is_complete(text: str, stop: tuple[str, ...], pieces: list[int]) -> None:
    complete = [(text.find(s) + len(s), -len(s)) for s in stop if s in text]
    if complete:
        end, negative_length = min(complete)
        assert streamed(text, stop, pieces) == (text[: end + negative_length], True)
    else:
        assert streamed(text, stop, pieces) == (text, False)


def test_what_may_become_a_stop_string_is_held_back_until_it_cannot() -> None:
    stream = TokenizerTextStreams(BYTE_LEVEL).open(NO_PROMPT, ("STOP",))
    ids = {letter: BYTE_LEVEL.encode(letter).ids for letter in "aSTO!"}
    assert stream.push([*ids["a"], *ids["S"], *ids["T"]]).text == "a"
    assert stream.push(ids["O"]).text == ""
    assert stream.push(ids["!"]).text == "STO!"
    assert stream.push(ids["S"]).text == ""
    assert stream.flush() == "S"


def test_many_long_stop_strings_cost_time_linear_in_the_output() -> None:
    def seconds(length: int) -> float:
        stream = TokenizerTextStreams(BYTE_LEVEL).open(NO_PROMPT, tuple("a" * 255 + chr(98 + i) for i in range(16)))
        tokens = [token_id(BYTE_LEVEL, "a")] * length
        begin = time.process_time()
        for token in tokens:
            stream.push([token])
        return time.process_time() - begin

    seconds(100)
    assert seconds(4000) < 16 * seconds(1000) + 0.05
