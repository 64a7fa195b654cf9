"""How a page lies in a store: a header that tells whether it is whole and the right one, then the content.

0   4 bytes   magic
4   2 bytes   format version
6   2 bytes   zero
8   8 bytes   length of the content
16  16 bytes  BLAKE2b of group, page and content: a page under another name is refused like a torn one
32            content
"""

import struct
from hashlib import blake2b
from typing import Final

from hicache.storage.store import PageName

FRAME_VERSION: Final = 1

_MAGIC: Final = b"RGKV"
_HEADER: Final = struct.Struct("<4sHHQ16s")
_DIGEST_BYTES: Final = 16
_PERSON: Final = b"radixgate.frame"

HEADER_BYTES: Final = _HEADER.size


def header_of(name: PageName, content: bytes) -> bytes:
    """Return what stands before `content` in a store."""
    return _HEADER.pack(_MAGIC, FRAME_VERSION, 0, len(content), _digest(name, content))


def content_of(name: PageName, frame: bytes) -> bytes | None:
    """Return the content of a frame, or None when it is not, whole and unaltered, the page of this name."""
    if len(frame) < HEADER_BYTES:
        return None
    magic, version, zero, length, digest = _HEADER.unpack_from(frame)
    if (magic, version, zero, length) != (_MAGIC, FRAME_VERSION, 0, len(frame) - HEADER_BYTES):
        return None
    content = frame[HEADER_BYTES:]
    return content if _digest(name, content) == digest else None


def frame_size(content: bytes) -> int:
    """Return what a page takes in a store, in bytes."""
    return HEADER_BYTES + len(content)


def _digest(name: PageName, content: bytes) -> bytes:
    digest = blake2b(name.group + name.page, digest_size=_DIGEST_BYTES, person=_PERSON)
    digest.update(content)
    return digest.digest()
