"""Loads from the host and fetches from storage that take the time they are modelled to take. What they move is real."""

from collections.abc import Callable, Sequence

from hicache.copies.copier import CopyThread, Mover, Pace, PoolCopier, Progress
from hicache.copies.streams import Event
from hicache.copies.transfer import Copy, LayerGate, Transfer
from hicache.storage.store import PageName, PageStore, StoreStats
from hicache.tiers.device import DevicePool
from hicache.tiers.host import HostPool
from worker.simulate.pacing import Pacer


class TimedMover:
    """Implements Mover over another one: a copy is over when its time is."""

    def __init__(self, mover: Mover, tokens_per_s: float, pacer: Pacer | None = None) -> None:
        self._mover = mover
        self._token_s = 1 / tokens_per_s
        self._pacer = pacer or Pacer()

    @property
    def num_layers(self) -> int:
        return self._mover.num_layers

    def fence(self) -> Event | None:
        return self._mover.fence()

    def move(self, copy: Copy, after: Event | None, progress: Progress) -> None:
        began_at = self._pacer.clock()
        self._mover.move(copy, after, _Untold())
        self._pacer.fill(began_at, len(copy) * self._token_s)
        progress.advance(self.num_layers)


class _Untold:
    """No layer is there before all are."""

    def advance(self, layers_done: int) -> None: ...

    def open(self, gate: LayerGate) -> None: ...


def timed_transfer(
    pool: DevicePool, host_pool: HostPool, on_done: Callable[[], None], *, tokens_per_s: float
) -> Transfer:
    """Return what copies between pools at this speed, both ways. No processor is there to be spared for passes."""
    return CopyThread(TimedMover(PoolCopier(pool, host_pool), tokens_per_s), Pace(mirror_duty=1.0), on_done)


class TimedStore:
    """Implements PageStore over another one: pages come from it at a speed. The rest takes what it takes."""

    def __init__(self, store: PageStore, page_s: float, pacer: Pacer | None = None) -> None:
        """`page_s` is what one page takes, in seconds."""
        self._store = store
        self._page_s = page_s
        self._pacer = pacer or Pacer()

    @property
    def name(self) -> str:
        return self._store.name

    def put(self, pages: Sequence[tuple[PageName, bytes]]) -> int:
        return self._store.put(pages)

    def get(self, names: Sequence[PageName]) -> list[bytes | None]:
        began_at = self._pacer.clock()
        pages = self._store.get(names)
        self._pacer.fill(began_at, sum(page is not None for page in pages) * self._page_s)
        return pages

    def contains(self, names: Sequence[PageName]) -> list[bool]:
        return self._store.contains(names)

    def remove_group(self, group: bytes) -> int:
        return self._store.remove_group(group)

    def stats(self) -> StoreStats:
        return self._store.stats()

    def close(self) -> None:
        self._store.close()
