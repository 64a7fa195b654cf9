"""What single tokens stand for, for each kind of vocabulary."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from gateway.prompts.token_bytes import TokenBytes
from tests.fakes.tiny_tokenizer import tiny_tokenizer


@pytest.mark.parametrize("text", ["The quick brown fox", "wörld 😀 \x00\x7f\xad", "日本語\n\t\u00a0"])
def test_bytes_of_a_byte_level_vocabulary_make_up_the_text(text: str) -> None:
    tokens, token_ids = TokenBytes(tiny_tokenizer()), tiny_tokenizer().encode(text).ids
    assert b"".join(tokens.of(token_id) or b"" for token_id in token_ids) == text.encode()


def test_parts_of_a_character_are_bytes() -> None:
    tokens, token_ids = TokenBytes(tiny_tokenizer()), tiny_tokenizer().encode("😀").ids
    assert [tokens.of(token_id) for token_id in token_ids] == [b"\xf0", b"\x9f", b"\x98", b"\x80"]


def test_control_tokens_are_their_spelling() -> None:
    assert TokenBytes(tiny_tokenizer()).of(1) == b"<|im_start|>"


@pytest.mark.parametrize("token_id", [-1, 100_000, 2**31 - 1])
def test_ids_that_the_tokenizer_does_not_know_are_nothing(token_id: int) -> None:
    assert TokenBytes(tiny_tokenizer()).of(token_id) is None


def test_bytes_and_spaces_of_a_vocabulary_of_pieces() -> None:
    tokenizer = Tokenizer(models.BPE({"<0xE2>": 0, "▁hello": 1, "x": 2, "<0xZZ>": 3}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    tokens = TokenBytes(tokenizer)
    assert [tokens.of(token_id) for token_id in range(5)] == [b"\xe2", b" hello", b"x", b"<0xZZ>", b"<s>"]


def test_spaces_of_a_metaspace_vocabulary() -> None:
    tokenizer = Tokenizer(models.BPE({"▁a": 0}, []))
    tokenizer.decoder = decoders.Metaspace()
    assert TokenBytes(tokenizer).of(0) == b" a"


def test_continuations_of_word_pieces() -> None:
    tokenizer = Tokenizer(models.WordPiece({"##ing": 0, "go": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    assert [TokenBytes(tokenizer).of(token_id) for token_id in (0, 1)] == [b"ing", b"go"]


def test_a_vocabulary_without_a_decoder_is_taken_as_it_is() -> None:
    assert TokenBytes(Tokenizer(models.BPE({"a": 0}, []))).of(0) == b"a"
