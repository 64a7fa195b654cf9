"""Which columns the tables have, and by which rows can be sorted."""

from collections.abc import Callable
from typing import Any, Final

from rich.text import Text

from cli.top.glyphs import NO_TRAFFIC, NOTHING, hit_bar, percent, seconds, short, slot_bar
from cli.top.grid import Column
from cli.top.rows import AdapterRow, GatewayRow, Latency, SlotUse, TenantRow, WorkerRow

_STALL_S = 5.0  # nothing moves for longer: worth a colour
_RIGHT_ENOUGH = 0.98  # as the alert has it


def _hit(row: WorkerRow | TenantRow | AdapterRow, width: int) -> Text:
    if row.hits is None:
        return Text(NO_TRAFFIC if width >= len(NO_TRAFFIC) else NOTHING, "bright_black")
    return Text(percent(row.hits.rate))


def _used(slots: SlotUse | None) -> str:
    if slots is None or not slots.total:
        return NOTHING
    return percent((slots.in_use + slots.evictable) / slots.total)


def _up(row: WorkerRow | GatewayRow, width: int) -> Text:
    return Text("● up", "green") if row.up else Text("○ down", "bold red")


def _worker_name(row: WorkerRow, width: int) -> Text:
    return Text(row.worker, "" if row.up else "red")


def _state(row: WorkerRow, width: int) -> Text:
    """What is wrong with a worker, first what is worst."""
    if not row.up:
        return Text(row.error, "red")
    if row.stalled_s is not None and row.stalled_s >= _STALL_S:
        return Text(f"stalled {seconds(row.stalled_s)}", "bold red")
    if row.pause_rate:
        return Text(f"{short(row.pause_rate)} pauses/s", "yellow")
    if row.lost_rate:
        return Text(f"loses {short(row.lost_rate)} tok/s", "yellow")
    return Text("")


def _p50(latency: Latency | None) -> str:
    return NOTHING if latency is None else seconds(latency.p50)


def _p95(latency: Latency | None) -> str:
    return NOTHING if latency is None else seconds(latency.p95)


def _redis(row: GatewayRow, width: int) -> Text:
    if row.redis is None:
        return Text(NOTHING)
    if not row.redis:
        return Text("away", "bold red")
    return Text("ok", "green") if row.shared_limits is not False else Text("behind", "yellow")


def _alarming(value: float | None) -> Text:
    return Text(short(value), "bold red" if value else "")


def _connected(row: GatewayRow, width: int) -> Text:
    if row.workers_known is None:
        return Text(NOTHING)
    style = "" if row.workers_connected == row.workers_known else "bold red"
    return Text(f"{row.workers_connected}/{row.workers_known}", style)


def _right(row: GatewayRow, width: int) -> Text:
    if row.right is None:
        return Text(NOTHING)
    return Text(percent(row.right), "" if row.right >= _RIGHT_ENOUGH else "yellow")


def _gateway_note(row: GatewayRow, width: int) -> Text:
    if not row.up:
        return Text(row.error, "red")
    if row.workers_shunned:
        return Text(f"{row.workers_shunned} breakers", "bold red")
    return Text(f"v{row.version}" if row.version else "", "bright_black")


WORKERS: Final[tuple[Column[WorkerRow], ...]] = (
    Column("WORKER", 10, _worker_name, align="left", grows_to=24),
    Column("", 6, _up, align="left"),
    Column("MODEL", 12, lambda row, _: row.model, 11, "left", grows_to=28),
    Column("RUN", 3, lambda row, _: short(row.running)),
    Column("WAIT", 4, lambda row, _: short(row.waiting)),
    Column("IN/s", 5, lambda row, _: short(row.prompt_rate)),
    Column("OUT/s", 5, lambda row, _: short(row.output_rate)),
    Column("STEP", 6, lambda row, _: seconds(row.step_s), 4),
    Column("TTFT95", 6, lambda row, _: _p95(row.ttft), 9),
    Column("HIT", 5, _hit, 1),
    Column("HIT BY TIER", 10, lambda row, width: hit_bar(row.hits, width), 5, "left", grows_to=30),
    Column("DEVICE", 10, lambda row, width: slot_bar(row.device, width), 3, "left", grows_to=30),
    Column("DEV%", 5, lambda row, _: _used(row.device), 6),
    Column("HOST", 10, lambda row, width: slot_bar(row.host, width), 7, "left", grows_to=24),
    Column("HOST%", 5, lambda row, _: _used(row.host), 8),
    Column("LORA", 4, lambda row, _: short(row.adapters), 10),
    Column("STATE", 12, _state, 2, "left", grows_to=26),
)

GATEWAYS: Final[tuple[Column[GatewayRow], ...]] = (
    Column("GATEWAY", 14, lambda row, _: Text(row.gateway, "" if row.up else "red"), align="left", grows_to=26),
    Column("", 6, _up, align="left"),
    Column("REQ/s", 5, lambda row, _: short(row.request_rate)),
    Column("TTFT50", 6, lambda row, _: _p50(row.ttft), 1),
    Column("TTFT95", 6, lambda row, _: _p95(row.ttft)),
    Column("FAIL/s", 6, lambda row, _: _alarming(row.failure_rate)),
    Column("LIMIT/s", 7, lambda row, _: short(row.refusal_rate), 2),
    Column("AUTH/s", 6, lambda row, _: short(row.auth_failure_rate), 6),
    Column("OPEN", 4, lambda row, _: short(row.streams), 3),
    Column("QUEUE", 5, lambda row, _: short(row.queued), 7),
    Column("REDIS", 6, _redis, 1, "left"),
    Column("WORKERS", 7, _connected, 4),
    Column("MOVED/s", 7, lambda row, _: short(row.move_rate), 8),
    Column("RIGHT", 5, _right, 9),
    Column("PAGES", 5, lambda row, _: short(row.known_pages), 10),
    Column("", 8, _gateway_note, 5, "left", grows_to=30),
)

TENANTS: Final[tuple[Column[TenantRow], ...]] = (
    Column("TENANT", 12, lambda row, _: row.tenant, align="left", grows_to=24),
    Column("IN/s", 5, lambda row, _: short(row.prompt_rate)),
    Column("OUT/s", 5, lambda row, _: short(row.output_rate)),
    Column("HIT", 10, _hit),
    Column("HIT BY TIER", 10, lambda row, width: hit_bar(row.hits, width), 2, "left", grows_to=30),
    Column("TTFT50", 6, lambda row, _: _p50(row.ttft), 4),
    Column("TTFT95", 6, lambda row, _: _p95(row.ttft), 1),
    Column("QUEUE95", 7, lambda row, _: _p95(row.queue), 3),
    Column("LIMIT/s", 7, lambda row, _: short(row.refusal_rate), 5),
)

ADAPTERS: Final[tuple[Column[AdapterRow], ...]] = (
    Column("ADAPTER", 12, lambda row, _: row.adapter, align="left", grows_to=24),
    Column("TENANT", 10, lambda row, _: row.tenant, 1, "left", grows_to=20),
    Column("IN/s", 5, lambda row, _: short(row.prompt_rate)),
    Column("OUT/s", 5, lambda row, _: short(row.output_rate)),
    Column("HIT", 10, _hit),
    Column("HIT BY TIER", 10, lambda row, width: hit_bar(row.hits, width), 2, "left", grows_to=30),
)


def _known(value: float | None) -> float:
    return -1.0 if value is None else value


def _hit_rate(row: Any) -> float:
    return -1.0 if row.hits is None else float(row.hits.rate)


def _slowest(row: Any) -> float:
    return -1.0 if row.ttft is None else float(row.ttft.p95)


# By header, the largest first; what is sorted by name comes in the order of the alphabet.
Key = Callable[[Any], Any]
SORTS: Final[dict[str, tuple[tuple[str, Key], ...]]] = {
    "workers": (
        ("WORKER", lambda row: row.worker),
        ("IN/s", lambda row: _known(row.prompt_rate)),
        ("OUT/s", lambda row: _known(row.output_rate)),
        ("HIT", _hit_rate),
        ("WAIT", lambda row: _known(row.waiting)),
    ),
    "gateways": (
        ("GATEWAY", lambda row: row.gateway),
        ("REQ/s", lambda row: _known(row.request_rate)),
        ("TTFT95", _slowest),
        ("FAIL/s", lambda row: _known(row.failure_rate)),
    ),
    "tenants": (
        ("IN/s", lambda row: row.prompt_rate),
        ("OUT/s", lambda row: row.output_rate),
        ("HIT", _hit_rate),
        ("TTFT95", _slowest),
        ("LIMIT/s", lambda row: _known(row.refusal_rate)),
        ("TENANT", lambda row: row.tenant),
    ),
    "adapters": (
        ("IN/s", lambda row: row.prompt_rate),
        ("OUT/s", lambda row: row.output_rate),
        ("HIT", _hit_rate),
        ("ADAPTER", lambda row: row.adapter),
    ),
}
