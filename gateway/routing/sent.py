"""What a worker should have cached, as far as one gateway can tell from what it sent there. Knows no connection.

A worker evicts, restarts and hears from other gateways without telling, so this is an expectation. How far it is from
what workers report is a metric: it says how much a choice of workers by what they hold would be worth.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from hicache.keys import TOKEN_BYTES, PrefixKey, first_name, pack_tokens, page_name, segment_name

BLOCK_TOKENS: Final = 32
"""The grain of an expectation. Smaller blocks tell more and cost a hash each: 1 µs, on the event loop."""

MAX_BLOCKS: Final = 65_536
"""Blocks that are remembered of one worker, two million tokens: about 10 MB."""

_BLOCK_BYTES: Final = BLOCK_TOKENS * TOKEN_BYTES


@dataclass(slots=True)
class Expectation:
    """What is expected of one request. `tokens` is a lower bound, in whole blocks."""

    tokens: int
    _known: "SentPrefixes"
    _key: PrefixKey
    _names: list[bytes]
    _first_new: int  # of the names: where those begin that were not known before
    _generated: dict[int, list[int]] = field(default_factory=dict)  # by completion

    def admitted(self, cached_tokens: int) -> int:
        """Return by how many tokens the expectation was off: above 0 if less was cached, below if more was."""
        if cached_tokens < self.tokens:
            return self.tokens - cached_tokens
        return min(0, self.tokens + BLOCK_TOKENS - 1 - cached_tokens)

    def generated(self, completion: int, token_ids: Sequence[int]) -> None:
        """A completion has got further tokens, or has ended well without: all of the prompt is computed."""
        self._generated.setdefault(completion, []).extend(token_ids)

    def ended(self) -> None:
        """Remember the completions, with which next turns of a chat begin; forget what never came to be computed."""
        if not self._generated:
            # An admitted prompt is computed in chunks; how many there were is not told.
            self._known.withdraw(self._names[self._first_new :])
            return
        self._known.remember(self._names)  # another request that had sent them first may have withdrawn them
        for token_ids in self._generated.values():
            if len(token_ids) > 1:
                # The last token has been generated and not computed.
                self._known.remember(_further_names(self._key, self._names, token_ids[:-1]))


class SentPrefixes:
    """The blocks of prompts and completions that one worker has computed for this gateway.

    Invariant: there are at most `max_blocks`; those used longest ago are forgotten first, and of one prompt its end
    before its beginning.
    """

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def sent(self, key: PrefixKey) -> Expectation:
        """Return what is expected of a prompt that is sent now, and expect to find it from now on."""
        names = block_names(key)
        known = next((i for i, name in enumerate(names) if name not in self._blocks), len(names))
        self.remember(names)
        # At least one token of a prompt is always computed.
        expected = min(known * BLOCK_TOKENS, max(0, len(key) - 1))
        return Expectation(expected, self, key, names, known)

    def remember(self, names: Sequence[bytes]) -> None:
        for name in reversed(names[: self._max_blocks]):
            self._blocks[name] = None
            self._blocks.move_to_end(name)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)

    def withdraw(self, names: Sequence[bytes]) -> None:
        for name in names:
            self._blocks.pop(name, None)

    def forget(self) -> None:
        """The worker has gone: whoever comes back under its address may have nothing."""
        self._blocks.clear()


def block_names(key: PrefixKey) -> list[bytes]:
    """Return the names of the key's whole blocks, 16 bytes each, in order. A block across a barrier lies behind it."""
    name, names = first_name(BLOCK_TOKENS, b""), list[bytes]()
    for namespace, packed, num_bytes in key.parts(BLOCK_TOKENS):
        name = segment_name(name, namespace)
        for start in range(0, num_bytes, _BLOCK_BYTES):
            name = page_name(name, packed[start : start + _BLOCK_BYTES])
            names.append(name)
    return names


def _further_names(key: PrefixKey, names: Sequence[bytes], token_ids: Sequence[int]) -> list[bytes]:
    """Return the names of the blocks that follow `names`, those of `key`, once `token_ids` have been appended to it."""
    last = key.segments[-1]
    # What fills no block yet; it may reach back across a barrier, and lies behind it.
    open_bytes = sum(map(len, key.segments)) * TOKEN_BYTES - len(names) * _BLOCK_BYTES
    packed = b"".join(segment.packed for segment in key.segments)
    packed = packed[len(packed) - open_bytes :] + pack_tokens(token_ids)
    parts = key.parts(BLOCK_TOKENS)
    name = names[-1] if names else first_name(BLOCK_TOKENS, b"")
    if not parts or parts[-1][0] != last.namespace:
        name = segment_name(name, last.namespace)
    further = []
    for start in range(0, len(packed) // _BLOCK_BYTES * _BLOCK_BYTES, _BLOCK_BYTES):
        name = page_name(name, packed[start : start + _BLOCK_BYTES])
        further.append(name)
    return further
