from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from cli.top.columns import SORTS, TENANTS, WORKERS
from cli.top.glyphs import bar, hit_bar, percent, seconds, short, sparkline
from cli.top.grid import fitting, table
from cli.top.keys import VIEWS, Controls, pressed
from cli.top.rows import AdapterRow, GatewayRow, Hits, Latency, Moment, SlotUse, TenantRow, Totals, View, WorkerRow
from cli.top.screen import screen
from cli.top.terminal import keys_in

HITS = Hits(prompt=100, device=40, host=20, storage=10)


def a_view(num_tenants: int = 3, num_workers: int = 2) -> View:
    workers = tuple(
        WorkerRow(
            worker=f"worker-{number}", endpoint=f"127.0.0.1:{number}", up=True, model="smollm2", running=3.0,
            waiting=1.0, prompt_rate=1234.5, output_rate=56.0, step_s=0.031, hits=HITS, stalled_s=0.0, pause_rate=0.0,
            device=SlotUse(free=10, evictable=60, in_use=30), host=SlotUse(free=1, evictable=1, in_use=0), adapters=1.0,
        )
        for number in range(num_workers)
    )  # fmt: skip
    down = WorkerRow(worker="worker-dead", endpoint="127.0.0.1:99", up=False, error="connection refused")
    gateway = GatewayRow(
        gateway="127.0.0.1:9464", up=True, request_rate=12.0, failure_rate=0.0, refusal_rate=0.1, redis=False,
        ttft=Latency(p50=0.12, p95=0.4), streams=3.0, queued=0.0, workers_connected=2, workers_known=3,
    )  # fmt: skip
    tenants = tuple(
        TenantRow(
            tenant=f"tenant-{number}", prompt_rate=100.0 - number, output_rate=float(number), hits=HITS, ttft=None,
            queue=None, refusal_rate=None,
        )
        for number in range(num_tenants)
    )  # fmt: skip
    adapter = AdapterRow(tenant="tenant-0", adapter="pirate", prompt_rate=5.0, output_rate=1.0, hits=None)
    totals = Totals(
        prompt_rate=2469.0, output_rate=112.0, hits=HITS, ttft=Latency(p50=0.12, p95=0.4), running=6.0, waiting=2.0,
        resident_adapters=2.0,
    )  # fmt: skip
    history = tuple(
        Moment(at=float(n), hit_rate=None if n % 7 == 0 else n / 40, prompt_rate=float(n), output_rate=1.0)
        for n in range(40)
    )
    return View(
        at=0.0, source="2 endpoints", window_s=60.0, error="", totals=totals, workers=(*workers, down),
        gateways=(gateway,), silent=(), tenants=tenants, adapters=(adapter,), history=history,
    )  # fmt: skip


def plain(lines: list[Text]) -> str:
    return "\n".join(line.plain for line in lines)


@given(
    width=st.integers(20, 260), height=st.integers(8, 70), view=st.sampled_from(VIEWS),
    num_tenants=st.integers(0, 60), num_workers=st.integers(0, 30), offset=st.integers(0, 80), asked=st.booleans(),
)  # fmt: skip
def test_nothing_is_wider_or_longer_than_the_terminal(
    width: int, height: int, view: str, num_tenants: int, num_workers: int, offset: int, asked: bool
) -> None:
    controls = Controls(view=view, offset=offset, help=asked)  # type: ignore[arg-type]
    lines = screen(a_view(num_tenants, num_workers), controls, width, height)
    assert len(lines) == height
    assert max(line.cell_len for line in lines) <= width


def test_80_by_24_has_workers_gateways_tenants_and_the_keys() -> None:
    shown = plain(screen(a_view(), Controls(), 80, 24))
    for wanted in ("worker-0", "● up", "worker-dead", "○ down", "connection", "9464", "away", "2/3", "tenant-2"):
        assert wanted in shown
    assert "q quit" in shown.splitlines()[-1]


def test_what_there_is_no_room_for_is_counted() -> None:
    shown = plain(screen(a_view(num_tenants=50, num_workers=20), Controls(), 80, 24))
    assert "more of 50 tenants" in shown
    assert "more of 21 workers" in shown
    assert "tenant-0 " in shown


def test_a_wide_terminal_shows_bars_and_adapters_beside_tenants() -> None:
    shown = plain(screen(a_view(), Controls(), 200, 50))
    for wanted in ("MODEL", "HOST%", "computed", "HIT BY TIER", "pirate", "no traffic"):
        assert wanted in shown
    assert "pirate" not in plain(screen(a_view(), Controls(), 80, 50))


@pytest.mark.parametrize(
    ("view", "wanted"),
    [
        ("workers", ("worker-0", "device", "host", "loaded back", "computed", "evictable", "30 + 60 of 100")),
        ("gateways", ("TTFT95", "400ms", "REDIS")),
        ("tenants", ("tenant-1", "HIT BY TIER")),
        ("adapters", ("pirate", "no traffic")),
    ],
)
def test_each_view_shows_its_own(view: str, wanted: tuple[str, ...]) -> None:
    shown = plain(screen(a_view(), Controls(view=view), 120, 40))  # type: ignore[arg-type]
    assert all(word in shown for word in wanted), shown


def test_a_gateway_says_how_often_it_was_right_what_moved_and_whom_it_shuns() -> None:
    [gateway] = a_view().gateways
    view = replace(
        a_view(), gateways=(replace(gateway, right=0.97, known_pages=12_345.0, move_rate=0.5, workers_shunned=2),)
    )
    shown = plain(screen(view, Controls(view="gateways"), 180, 20))
    assert all(word in shown for word in ("97 %", "12.3k", "0.5", "2 breakers")), shown


def test_what_the_source_cannot_say_is_told() -> None:
    view = replace(a_view(), error="no answer in 3 s", silent=(("127.0.0.1:1", "connection refused"),))
    shown = plain(screen(view, Controls(), 100, 30))
    assert "Nothing new: 2 endpoints: no answer in 3 s" in shown
    assert "127.0.0.1:1: connection refused" in shown


def test_tenants_are_sorted_as_chosen_and_the_other_way_round() -> None:
    def order(controls: Controls) -> list[str]:
        lines = plain(screen(a_view(), controls, 100, 40)).splitlines()
        return [line.split()[0] for line in lines if line.startswith("tenant-")]

    by_input = Controls(view="tenants")
    assert order(by_input) == ["tenant-0", "tenant-1", "tenant-2"]
    assert order(pressed(by_input, "r")) == ["tenant-2", "tenant-1", "tenant-0"]
    assert order(pressed(by_input, "s")) == ["tenant-2", "tenant-1", "tenant-0"]  # by OUT/s
    by_name = replace(by_input, sort=[name for name, _ in SORTS["tenants"]].index("TENANT"))
    assert order(by_name) == ["tenant-0", "tenant-1", "tenant-2"]


def test_scrolling_leaves_at_least_the_last_row() -> None:
    shown = plain(screen(a_view(), Controls(view="tenants", offset=99), 100, 40))
    assert "tenant-2" in shown
    assert "2 more of 3 tenants" in shown


def test_keys_switch_sort_hold_scroll_and_quit() -> None:
    controls = Controls()
    for key, name, value in (
        ("2", "view", "workers"), ("\t", "view", "gateways"), ("backtab", "view", "workers"), ("s", "sort", 1),
        ("r", "reverse", True), ("down", "offset", 1), ("page down", "offset", 11), ("up", "offset", 10),
        (" ", "held", True), (" ", "held", False), ("+", "interval_s", 1.0), ("-", "interval_s", 2.0),
        ("?", "help", True), ("x", "help", False), ("4", "sort", 0), ("q", "quit", True),
    ):  # fmt: skip
        controls = pressed(controls, key)
        assert getattr(controls, name) == value, key


@given(st.lists(st.sampled_from([*"qsr12345 ?h+-=jkx\t", "up", "down", "page up", "backtab", "left", "right"])))
def test_no_keys_lead_to_something_that_cannot_be_shown(keys: list[str]) -> None:
    controls = Controls()
    for key in keys:
        controls = pressed(controls, key)
    assert len(screen(a_view(), controls, 80, 24)) == 24


def test_sequences_of_a_terminal_are_keys() -> None:
    assert keys_in("q\x1b[A\x1bOB\x1b[6~s") == ["q", "up", "down", "page down", "s"]
    assert keys_in("\x1b[1;5Cq") == ["q"]  # Ctrl and an arrow mean nothing here
    assert keys_in("\x1b") == []
    assert keys_in("\x1b[12") == []


@given(st.lists(st.floats(0, 1e6, allow_nan=False), min_size=1, max_size=5), st.integers(1, 80))
def test_a_bar_is_exactly_as_wide_as_it_should_be(amounts: list[float], width: int) -> None:
    assert bar([(amount, "x", "") for amount in amounts], width).cell_len == width


def test_little_is_not_nothing_in_a_bar() -> None:
    assert hit_bar(Hits(prompt=10_000, device=1, host=0, storage=0), 10).plain == "█" + "·" * 9
    assert hit_bar(None, 12).plain == "no traffic  "


def test_a_sparkline_has_gaps_where_nothing_was_known() -> None:
    assert sparkline([0.0, None, 0.5, 1.0], 6, top=1.0).plain == "  ▁ ▅█"
    assert sparkline([], 3).plain == "   "


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (0.004, "<.01"), (0.25, "0.25"), (7, "7"), (12.34, "12.3"), (999.7, "1k"), (1234, "1.23k"),
     (35_000_000, "35M"), (99_960, "100k")],
)  # fmt: skip
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert short(value) == text


@given(st.floats(0, 1e14, allow_nan=False))
def test_no_number_is_longer_than_five_characters(value: float) -> None:
    assert len(short(value)) <= 5


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.00042, "420µs"), (0.0042, "4.2ms"), (0.31, "310ms"), (4.21, "4.2s"), (300, "300s")],
)
def test_times_have_a_unit(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_a_rate_that_is_not_known_is_no_rate_of_nought() -> None:
    assert percent(None) == "no traffic"
    assert percent(0.0) == "0 %"


def test_columns_leave_by_their_importance() -> None:
    headers = [column.header for column, _ in fitting(WORKERS, 80)]
    assert {"WORKER", "RUN", "WAIT", "IN/s", "OUT/s", "HIT", "STATE"} <= set(headers)
    assert "MODEL" not in headers
    assert [column.header for column, _ in fitting(WORKERS, 300)] == [column.header for column in WORKERS]


def test_the_column_that_rows_are_sorted_by_stands_out() -> None:
    header = table(TENANTS, [], 100, sorted_by="HIT")[0]
    assert [header.plain[span.start : span.end] for span in header.spans if "reverse" in str(span.style)] == ["HIT"]
