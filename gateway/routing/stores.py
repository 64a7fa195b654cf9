"""What lies in storage, of each store, for all workers that share it."""

from gateway.routing.index import Holder, PageIndex

_MAX_UNUSED = 8


class Stores:
    """The holders of stores, by what workers call them.

    A page that was stored may be gone: others empty a store, and tell nobody. Pages are forgotten with all others,
    those used longest ago first. A store that no connected worker has is kept for a while: its workers come back.
    """

    def __init__(self, index: PageIndex) -> None:
        self._index = index
        self._holders: dict[str, Holder] = {}  # used longest ago first
        self._users: dict[str, int] = {}

    def take(self, store_id: str) -> Holder | None:
        """Return who holds what lies in a store; None for "", which is none. A worker takes it until `leave`."""
        if not store_id:
            return None
        holder = self._holders.pop(store_id, None) or self._index.join()
        self._holders[store_id] = holder
        self._users[store_id] = self._users.get(store_id, 0) + 1
        return holder

    def leave(self, store_id: str) -> None:
        """A worker that took it has gone."""
        if not store_id:
            return
        self._users[store_id] -= 1
        unused = [each for each in self._holders if not self._users[each]]
        for each in unused[: max(0, len(unused) - _MAX_UNUSED)]:
            del self._users[each]
            self._holders.pop(each).leave()
