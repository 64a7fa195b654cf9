"""The frame around a page: its layout is pinned, and no altered byte passes."""

from hypothesis import given
from hypothesis import strategies as st

from hicache.storage.frame import HEADER_BYTES, content_of, frame_size, header_of
from hicache.storage.store import PageName

NAME = PageName(bytes(range(16)), bytes(range(16, 32)))


def test_the_layout_is_the_one_that_stores_hold() -> None:
    # A change of this line makes every stored page unreadable: it needs another version in the header.
    expected = "52474b56 0100 0000 0300000000000000 3b2d230024f0dd8ecb2025d257f9ec2d"
    assert header_of(NAME, b"abc").hex() == expected.replace(" ", "")


@given(st.binary(max_size=200))
def test_what_was_framed_comes_back(content: bytes) -> None:
    frame = header_of(NAME, content) + content
    assert len(frame) == frame_size(content)
    assert content_of(NAME, frame) == content


@given(st.binary(max_size=60), st.data())
def test_no_altered_bit_passes(content: bytes, data: st.DataObject) -> None:
    frame = bytearray(header_of(NAME, content) + content)
    bit = data.draw(st.integers(0, 8 * len(frame) - 1))
    frame[bit // 8] ^= 1 << bit % 8
    assert content_of(NAME, bytes(frame)) is None


@given(st.binary(max_size=60), st.data())
def test_no_part_of_a_frame_passes(content: bytes, data: st.DataObject) -> None:
    frame = header_of(NAME, content) + content
    assert content_of(NAME, frame[: data.draw(st.integers(0, len(frame) - 1))]) is None
    assert content_of(NAME, frame + b"\0") is None


@given(st.binary(max_size=HEADER_BYTES * 2))
def test_no_other_bytes_pass(noise: bytes) -> None:
    assert content_of(NAME, noise) is None
