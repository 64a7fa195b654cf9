"""Which public prefix a prompt begins with: the longest, whatever their number. Values in, values out."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gateway.serving.ports import PublicPrefix
from hicache.keys import TOKEN_BYTES, TOKEN_DTYPE


@dataclass(frozen=True, slots=True)
class RegisteredPrefix:
    """A public prefix. `version` differs from that of every other prefix that there ever was."""

    prefix_id: str
    display_name: str
    model: str
    adapter: str
    version: int
    packed: bytes  # its tokens, as little-endian int32
    created_at: float

    @property
    def num_tokens(self) -> int:
        return len(self.packed) // TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class _Group:
    """The prefixes of one model and adapter, in order of their bytes.

    Everything in between a prefix of the prompt and the prompt itself begins with that prefix, too. So the longest one
    is found from the prompt's left neighbour, by going on from each to the next shorter one that it begins with.
    """

    packed: Sequence[bytes]
    prefixes: Sequence[PublicPrefix]
    shorter: Sequence[int]  # of each: the longest other one that it begins with; -1: none
    max_bytes: int

    def longest(self, prompt: bytes) -> PublicPrefix | None:
        position = bisect_left(self.packed, prompt) - 1
        while position >= 0 and not prompt.startswith(self.packed[position]):
            position = self.shorter[position]
        return self.prefixes[position] if position >= 0 else None


_EMPTY: Final = _Group((), (), (), 0)


class PrefixIndex:
    """Finds the longest prefix in O(log n) comparisons, and one for each that lies inside another."""

    def __init__(self, prefixes: Iterable[RegisteredPrefix] = ()) -> None:
        by_group: dict[tuple[str, str], list[RegisteredPrefix]] = defaultdict(list)
        for prefix in prefixes:
            by_group[prefix.model, prefix.adapter].append(prefix)
        self._groups: Mapping[tuple[str, str], _Group] = {key: _grouped(each) for key, each in by_group.items()}

    def longest(self, model: str, adapter: str, token_ids: Sequence[int]) -> PublicPrefix | None:
        """Return the longest that the prompt begins with and goes beyond."""
        group = self._groups.get((model, adapter), _EMPTY)
        # One token more than the longest prefix tells all that there is to know.
        num_tokens = min(len(token_ids), group.max_bytes // TOKEN_BYTES + 1)
        if not group.max_bytes or num_tokens < 2:
            return None
        return group.longest(np.array(token_ids[:num_tokens], TOKEN_DTYPE).tobytes())


def _grouped(prefixes: list[RegisteredPrefix]) -> _Group:
    ordered = sorted(prefixes, key=lambda prefix: (prefix.packed, prefix.prefix_id))
    shorter: list[int] = []
    for position, prefix in enumerate(ordered):
        above = position - 1
        while above >= 0 and not prefix.packed.startswith(ordered[above].packed):
            above = shorter[above]
        shorter.append(above)
    return _Group(
        [prefix.packed for prefix in ordered],
        [PublicPrefix(prefix.prefix_id, prefix.version, prefix.num_tokens) for prefix in ordered],
        shorter,
        max(len(prefix.packed) for prefix in ordered),
    )
