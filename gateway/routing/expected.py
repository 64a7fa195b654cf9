"""What a worker should have of a prompt when it comes to it, and what will be there because the prompt was sent.

told:    the worker tells of its cache. Pages of a prompt are expected from when it is sent until they are told of,
         or the request ends.
untold:  it tells nothing. What it has computed for this gateway is assumed to be there for as long as it stays
         connected and there is room for it in the index.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from gateway.routing.index import PageIndex
from gateway.routing.names import NameScheme
from hicache.keys import TOKEN_BYTES, PrefixKey, first_name, pack_tokens, page_name, segment_name

UNTOLD: Final = NameScheme(b"", 32)
"""How this gateway calls the pages of a worker that says nothing of them. Smaller ones tell more, at a µs each."""


class Expectation(Protocol):
    """What is expected of one request. `tokens` is a lower bound, in whole pages."""

    @property
    def tokens(self) -> int: ...

    def admitted(self, cached_tokens: int) -> int:
        """Return by how many tokens the expectation was off: above 0 if less was cached, below if more was."""
        ...

    def generated(self, completion: int, token_ids: Sequence[int]) -> None:
        """A completion has got further tokens, or has ended well without: all of the prompt is computed."""
        ...

    def ended(self) -> None:
        """The request is over: nothing more will come to be because of it."""
        ...


class Pages:
    """The pages of one worker, as the index knows them."""

    def __init__(self, index: PageIndex, scheme: NameScheme, cache_page_size: int) -> None:
        self.index = index
        self.scheme = scheme
        self.holder = index.join()
        self._cache_page_size = max(1, cache_page_size)

    def names(self, key: PrefixKey) -> list[bytes]:
        return self.index.names.of(key, self.scheme)

    def tokens(self, num_pages: int, key: PrefixKey) -> int:
        """Return the tokens of `key` that are found where so many of its pages are: never the last one."""
        most = max(0, len(key) - 1) // self._cache_page_size * self._cache_page_size
        return min(num_pages * self.scheme.page_size, most)


class ToldExpectation:
    """Of a worker that tells what it has: it will tell of what it computes for this request."""

    def __init__(self, pages: Pages, key: PrefixKey) -> None:
        names = pages.names(key)
        (depth,) = pages.index.match(names, [pages.holder])
        self.tokens = pages.tokens(depth.held, key)
        self._pages = pages
        self._awaited = pages.holder.expect(names)

    def admitted(self, cached_tokens: int) -> int:
        return error_of(self.tokens, cached_tokens, self._pages.scheme.page_size)

    def generated(self, completion: int, token_ids: Sequence[int]) -> None:
        """Nothing to remember: it is told with the tokens."""

    def ended(self) -> None:
        self._pages.holder.withdraw(self._awaited)


class UntoldExpectation:
    """Of a worker that tells nothing: who sent the request notes what came of it."""

    def __init__(self, pages: Pages, key: PrefixKey) -> None:
        self._names = pages.names(key)
        (depth,) = pages.index.match(self._names, [pages.holder])
        self.tokens = pages.tokens(depth.held, key)
        self._pages = pages
        self._key = key
        self._awaited = pages.holder.expect(self._names)
        self._generated: dict[int, list[int]] = {}  # by completion

    def admitted(self, cached_tokens: int) -> int:
        return error_of(self.tokens, cached_tokens, self._pages.scheme.page_size)

    def generated(self, completion: int, token_ids: Sequence[int]) -> None:
        self._generated.setdefault(completion, []).extend(token_ids)

    def ended(self) -> None:
        """Remember the completions, with which next turns of a chat begin; forget what never came to be computed."""
        holder = self._pages.holder
        holder.withdraw(self._awaited)
        if not self._generated:
            # An admitted prompt is computed in chunks; how many there were is not told.
            return
        holder.assume(self._names)
        for token_ids in self._generated.values():
            if len(token_ids) > 1:
                # The last token has been generated and not computed.
                holder.assume(further_names(self._pages.scheme, self._key, self._names, token_ids[:-1]))


def error_of(expected_tokens: int, cached_tokens: int, page_size: int) -> int:
    """Return how far a lower bound in whole pages was off. What lies in the page behind it is no error."""
    if cached_tokens < expected_tokens:
        return expected_tokens - cached_tokens
    return min(0, expected_tokens + page_size - 1 - cached_tokens)


def further_names(scheme: NameScheme, key: PrefixKey, names: Sequence[bytes], token_ids: Sequence[int]) -> list[bytes]:
    """Return the names of the pages that follow `names`, those of `key`, once `token_ids` have been appended to it."""
    last, page_bytes = key.segments[-1], scheme.page_size * TOKEN_BYTES
    # What fills no page yet; it may reach back across a barrier, and lies behind it.
    open_bytes = sum(map(len, key.segments)) * TOKEN_BYTES - len(names) * page_bytes
    packed = b"".join(segment.packed for segment in key.segments)
    packed = packed[len(packed) - open_bytes :] + pack_tokens(token_ids)
    parts = key.parts(scheme.page_size)
    name = names[-1] if names else first_name(scheme.page_size, scheme.seed)
    if not parts or parts[-1][0] != last.namespace:
        name = segment_name(name, last.namespace)
    further = []
    for start in range(0, len(packed) // page_bytes * page_bytes, page_bytes):
        name = page_name(name, packed[start : start + page_bytes])
        further.append(name)
    return further
