"""Extra keys, namespaces, segments, and the names of pages."""

import json
import struct
from hashlib import blake2b
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from hicache.errors import InvalidKeyError
from hicache.keys import ExtraKey, Namespace, PrefixKey, Segment, pack_tokens, page_hashes
from tests.unit.hicache.support import key, namespace

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "extra_key.json").read_text())
SECRET = bytes.fromhex(GOLDEN["secret_hex"])


@pytest.mark.parametrize("vector", GOLDEN["extra_keys"], ids=lambda vector: vector["name"])
def test_an_extra_key_has_the_pinned_encoding_and_digest(vector: dict[str, str | dict[str, str | int]]) -> None:
    extra_key = ExtraKey(**vector["fields"])  # type: ignore[arg-type]
    assert extra_key.encode().hex() == vector["encoded_hex"]
    assert extra_key.digest(SECRET).hex() == vector["digest_hex"]


@pytest.mark.parametrize("vector", GOLDEN["page_hashes"], ids=lambda vector: vector["name"])
def test_pages_have_the_pinned_names(vector: dict[str, object]) -> None:
    segments = [
        Segment(Namespace(bytes.fromhex(segment["extra_key_hex"]), segment["adapter_revision"]), segment["token_ids"])
        for segment in vector["segments"]  # type: ignore[attr-defined]
    ]
    names = page_hashes(PrefixKey(tuple(segments)), vector["page_size"], bytes.fromhex(vector["seed_hex"]))  # type: ignore[arg-type]
    assert [name.hex() for name in names] == vector["names_hex"]


def test_the_encoding_is_a_tagged_list_of_length_prefixed_fields() -> None:
    fields = [b"acme", b"", b"r1", (5).to_bytes(8, "little"), b""]
    expected = b"radixgate.extra-key\x01\x00" + b"".join(struct.pack("<I", len(field)) + field for field in fields)
    extra_key = ExtraKey("acme", adapter_revision="r1", cache_version=5)
    assert extra_key.encode() == expected
    assert extra_key.digest(SECRET) == blake2b(expected, digest_size=16, key=SECRET).digest()


def test_a_separator_between_fields_cannot_be_forged() -> None:
    texts = ["", "a", "b", "ab", "bc", "abc", "a:b", "a/b", "a\x00b", "\x00", "|", "ä", "a" * 10_000, "a" * 9_999]
    keys = [ExtraKey(tenant, adapter) for tenant in texts for adapter in texts]
    keys += [ExtraKey("a", adapter_revision=text) for text in texts if text]
    keys += [ExtraKey("a", scope=text) for text in texts if text]
    keys += [ExtraKey("a", cache_version=version) for version in (1, 256, 2**32, 2**64 - 1)]
    assert len({extra_key.encode() for extra_key in keys}) == len(keys)
    assert len({extra_key.digest(SECRET) for extra_key in keys}) == len(keys)


def test_adjacent_fields_do_not_run_into_each_other() -> None:
    assert ExtraKey("a", "bc").digest(SECRET) != ExtraKey("ab", "c").digest(SECRET)


def test_another_secret_gives_another_digest() -> None:
    assert ExtraKey("a").digest(SECRET) != ExtraKey("a").digest(SECRET[::-1])


@pytest.mark.parametrize("length", [0, 15, 65])
def test_a_secret_that_is_too_short_or_too_long_is_refused_with_its_limits(length: int) -> None:
    with pytest.raises(InvalidKeyError, match="16 to 64 bytes"):
        ExtraKey("a").digest(bytes(length))


@pytest.mark.parametrize("version", [-1, 2**64])
def test_a_cache_version_outside_64_bits_is_refused(version: int) -> None:
    with pytest.raises(InvalidKeyError, match="cache_version"):
        ExtraKey("a", cache_version=version)


def test_text_that_is_not_unicode_is_refused_by_field() -> None:
    with pytest.raises(InvalidKeyError, match="scope"):
        ExtraKey("a", scope="\ud800").encode()


@pytest.mark.parametrize("wrong", [b"", bytes(15), bytes(17), "0123456789abcdef", bytearray(16)])
def test_a_namespace_without_16_bytes_of_extra_key_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidKeyError, match="16 bytes"):
        Namespace(wrong)  # type: ignore[arg-type]


def test_a_segment_keeps_a_copy_that_the_caller_cannot_change() -> None:
    tokens = np.arange(5, dtype=np.int32)
    kept = PrefixKey.of(namespace(), tokens)
    tokens[:] = 9
    assert kept.token_ids.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="read-only"):
        kept.token_ids[0] = 1


@pytest.mark.parametrize("tokens", [[1, 2, 3], np.array([1, 2, 3]), np.array([9, 1, 2, 3], dtype=np.int32)[1:]])
def test_tokens_are_packed_the_same_from_any_integers(tokens: list[int]) -> None:
    assert pack_tokens(tokens) == b"\x01\0\0\0\x02\0\0\0\x03\0\0\0"


@pytest.mark.parametrize("tokens", [[0.5], [-1], [2**31], ["a"], [[1, 2]], [True, False]])
def test_what_is_no_token_is_refused(tokens: list[int]) -> None:
    with pytest.raises(InvalidKeyError, match="token_ids"):
        pack_tokens(tokens)


def test_no_tokens_at_all_make_an_empty_segment() -> None:
    assert len(key([])) == 0
    assert key([]).parts(1) == ()


def test_equal_keys_are_equal_and_hash_alike() -> None:
    assert key([1, 2]) == key([1, 2])
    assert len({key([1, 2]), key([1, 2]), key([1, 2], "other"), key([1, 3])}) == 3


def test_the_tokens_of_a_key_are_not_shown() -> None:
    assert "1234567" not in repr(key([1234567]))


def two_segments(public: list[int], own: list[int]) -> PrefixKey:
    return PrefixKey((Segment(namespace("public"), public), Segment(namespace("tenant"), own)))


def test_prefix_and_extend_cut_and_grow_at_the_end() -> None:
    whole = two_segments([1, 2, 3], [4, 5])
    assert len(whole) == 5
    assert whole.token_ids.tolist() == [1, 2, 3, 4, 5]
    assert whole.prefix(2) == two_segments([1, 2], [])
    assert whole.prefix(4) == two_segments([1, 2, 3], [4])
    assert whole.prefix(4).extend([5]) == whole
    with pytest.raises(InvalidKeyError, match=r"0\.\.5"):
        whole.prefix(6)


def test_a_key_needs_segments_of_different_namespaces() -> None:
    with pytest.raises(InvalidKeyError, match="at least one"):
        PrefixKey(())
    with pytest.raises(InvalidKeyError, match="different namespaces"):
        PrefixKey((Segment(namespace(), [1]), Segment(namespace(), [2])))


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_every_prefix_is_cut_into_the_same_parts(page_size: int) -> None:
    whole = two_segments(list(range(6)), list(range(6, 13)))

    def pages(cut: PrefixKey) -> list[tuple[Namespace, bytes]]:
        step = 4 * page_size
        parts = cut.parts(page_size)
        return [(name, packed[at : at + step]) for name, packed, size in parts for at in range(0, size, step)]

    for length in range(len(whole) + 1):
        assert pages(whole.prefix(length)) == pages(whole)[: length // page_size]


def test_a_page_that_straddles_the_barrier_belongs_to_the_segment_behind_it() -> None:
    whole = two_segments([1, 2, 3, 4, 5, 6], [7, 8, 9])
    assert [(part[0], part[2]) for part in whole.parts(4)] == [(namespace("public"), 16), (namespace("tenant"), 16)]
    assert [part[0] for part in whole.parts(8)] == [namespace("tenant")]


def test_page_names_form_a_chain() -> None:
    names = page_hashes(key(list(range(10))), 4, b"model")
    assert len(names) == 2
    assert page_hashes(key([*range(8), 99, 98]), 4, b"model") == names
    changed = page_hashes(key([99, *range(1, 10)]), 4, b"model")
    assert not set(names) & set(changed)


def test_pages_of_different_origin_never_share_a_name() -> None:
    tokens = list(range(8))
    public = Segment(namespace("public"), tokens)
    groups = [
        page_hashes(key(tokens), 4, b"model"),
        page_hashes(key(tokens), 2, b"model"),
        page_hashes(key(tokens), 4, b"other model"),
        page_hashes(key(tokens, "other"), 4, b"model"),
        page_hashes(PrefixKey.of(Namespace(namespace().extra_key, "r1"), tokens), 4, b"model"),
        page_hashes(PrefixKey((public, Segment(namespace("a"), tokens))), 4, b"model"),
        page_hashes(PrefixKey((public, Segment(namespace("b"), tokens))), 4, b"model")[2:],
    ]
    for one, other in combinations(groups, 2):
        assert not set(one) & set(other)
