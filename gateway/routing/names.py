"""What the pages of a prompt are called, at workers that may call them differently."""

from dataclasses import dataclass

from hicache.keys import PrefixKey, page_hashes


@dataclass(frozen=True, slots=True)
class NameScheme:
    """How a worker names pages, see `hicache.keys.page_hashes`. Workers with the same one mean the same by a name."""

    seed: bytes
    page_size: int  # in tokens

    def names(self, key: PrefixKey) -> list[bytes]:
        return page_hashes(key, self.page_size, self.seed)


class KeyNames:
    """The names of the key that was last asked for: who chooses a worker asks, and so does whoever sends it there."""

    def __init__(self) -> None:
        self._key: PrefixKey | None = None
        self._by_scheme: dict[NameScheme, list[bytes]] = {}

    def of(self, key: PrefixKey, scheme: NameScheme) -> list[bytes]:
        """Return the names of the key's whole pages. Keys are told apart by what they are, not by what they say."""
        if key is not self._key:
            self._key, self._by_scheme = key, {}
        names = self._by_scheme.get(scheme)
        if names is None:
            names = self._by_scheme[scheme] = scheme.names(key)
        return names
