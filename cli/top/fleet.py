"""Keeps what endpoints showed, and makes rows of it. Takes polls with their times; knows no network, no terminal."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cli.top import names
from cli.top.rows import Moment, Totals, View, WorkerRow
from cli.top.samples import Samples
from cli.top.sources import Look, Poll
from cli.top.summing import (
    adapter_rows,
    gateway_row,
    hits_of,
    latency_of,
    output_rate,
    sum_known,
    tenant_rows,
    worker_row,
)
from cli.top.trail import Trail, Window

_HISTORY = 600  # polls


@dataclass(slots=True)
class _Endpoint:
    trail: Trail
    error: str = ""
    latest: Window | None = None  # the last step alone

    @property
    def samples(self) -> Samples:
        return self.trail.last or Samples()

    @property
    def is_worker(self) -> bool:
        return names.RUNNING in self.samples.families

    @property
    def is_gateway(self) -> bool:
        families = self.samples.families
        return any(name in families for name in (names.GATEWAY_INFO, names.STREAMS, names.QUEUED))


@dataclass(slots=True)
class Fleet:
    """All endpoints of a source, as far as they have been seen. One that dies keeps its row, without figures."""

    source: str
    window_s: float
    _endpoints: dict[str, _Endpoint] = field(default_factory=dict)
    _history: deque[Moment] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    _error: str = ""
    _at: float = 0.0

    def take(self, poll: Poll) -> None:
        """Take in what a source answered."""
        self._at, self._error = poll.at, poll.error
        if poll.error:
            return
        new = [self._look(look, poll.at) for look in poll.looks]
        if any(new):
            self._history.append(self._moment(poll.at))

    def view(self) -> View:
        """Return what is to be seen now."""
        workers = [each for each in self._endpoints.values() if each.is_worker]
        gateways = [each for each in self._endpoints.values() if each.is_gateway]
        of_workers = [each.trail.window() for each in workers]
        of_gateways = [each.trail.window() for each in gateways]
        return View(
            at=self._at,
            source=self.source,
            window_s=self.window_s,
            error=self._error,
            totals=_totals(workers, of_workers, of_gateways),
            workers=self._worker_rows(),
            gateways=tuple(
                gateway_row(name, each.samples, each.trail.window(), each.error) for name, each in self._are("gateway")
            ),
            silent=tuple((name, each.error) for name, each in self._are("unknown")),
            tenants=tenant_rows(of_workers, of_gateways),
            adapters=adapter_rows(of_workers or of_gateways, from_workers=bool(of_workers)),
            history=tuple(self._history),
        )

    def _worker_rows(self) -> tuple[WorkerRow, ...]:
        rows = (worker_row(name, each.samples, each.trail.window(), each.error) for name, each in self._are("worker"))
        return tuple(sorted(rows, key=lambda row: (row.worker, row.endpoint)))

    def _are(self, kind: str) -> Iterable[tuple[str, _Endpoint]]:
        for name, each in self._endpoints.items():
            found = "worker" if each.is_worker else "gateway" if each.is_gateway else "unknown"
            if found == kind:
                yield name, each

    def _look(self, look: Look, now: float) -> bool:
        """Take in one look; returns whether anything is new."""
        endpoint = self._endpoints.setdefault(look.endpoint, _Endpoint(Trail(self.window_s)))
        endpoint.error, endpoint.latest = look.error, None
        if look.samples is None:
            endpoint.trail.forget(now)
            return False
        step = endpoint.trail.look(look.at, look.samples)
        if step is not None:
            endpoint.latest = Window.over([step], look.samples)
        return step is not None

    def _moment(self, at: float) -> Moment:
        """What the last steps alone say, of workers if there are any."""
        workers = [each.latest for each in self._endpoints.values() if each.is_worker and each.latest is not None]
        seen = workers or [each.latest for each in self._endpoints.values() if each.latest is not None]
        of_workers = bool(workers)
        hits = hits_of(seen, from_workers=of_workers)
        return Moment(
            at=at,
            hit_rate=None if hits is None else hits.rate,
            prompt_rate=sum_known(each.rate(_prompt(of_workers)) for each in seen),
            output_rate=sum_known(output_rate(each, from_workers=of_workers) for each in seen),
        )


def _prompt(of_workers: bool) -> str:
    return names.PROMPT if of_workers else names.GATEWAY_PROMPT


def _totals(workers: list[_Endpoint], of_workers: list[Window], of_gateways: list[Window]) -> Totals:
    seen, from_workers = of_workers or of_gateways, bool(of_workers)
    alive: Mapping[str, float | None] = {
        name: sum_known(each.samples.value(name) for each in workers if not each.error)
        for name in (names.RUNNING, names.WAITING, names.RESIDENT)
    }
    ttft = latency_of(of_gateways, names.GATEWAY_TTFT) or latency_of(of_workers, names.WORKER_TTFT)
    return Totals(
        prompt_rate=sum_known(each.rate(_prompt(from_workers)) for each in seen),
        output_rate=sum_known(output_rate(each, from_workers=from_workers) for each in seen),
        hits=hits_of(seen, from_workers=from_workers),
        ttft=ttft,
        running=alive[names.RUNNING],
        waiting=alive[names.WAITING],
        resident_adapters=alive[names.RESIDENT],
    )
