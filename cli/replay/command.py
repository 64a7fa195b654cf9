"""The command itself: which caches, in which order, and where the results go."""

import importlib
import json
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console

from cli.progress import Reporter, reporter_for
from cli.replay.report import as_json, show, slots_from, slots_text
from cli.replay.simulator import CacheSize, Replay, replay
from cli.replay.trace import Trace, TraceError, open_trace
from hicache.radix import policy

T = TypeVar("T")
_MAX_PAGE_SIZE = 2**20
_PICTURES = (".png", ".svg", ".pdf")

Plotter = Callable[[Path, Path, Sequence[Replay]], None]


def _each(parse: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], list[T]]:
    """Return the callback of an option that may be repeated and holds values with commas between them."""

    def values(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> list[T]:
        found: dict[T, None] = {}  # each once, in the order given
        for text in ",".join(texts).split(","):
            try:
                found[parse(text.strip())] = None
            except ValueError as error:
                raise click.BadParameter(f"{text.strip()!r}: {error}") from error
        return list(found)

    return values


def _device_slots(text: str) -> int | None:
    if text == "unlimited":
        return None
    slots = slots_from(text)
    if not slots:
        raise ValueError("must be at least 1")
    return slots


def _page_size(text: str) -> int:
    page_size = int(text) if text.isdecimal() else 0
    if not 1 <= page_size <= _MAX_PAGE_SIZE:
        raise ValueError(f"must be a whole number from 1 to {_MAX_PAGE_SIZE}")
    return page_size


def _policy(text: str) -> str:
    return policy.by_name(text).name


def _writable(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """See that a file can be written, and leave it as it is."""
    if path is None:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        was_there = path.exists()
        path.open("ab").close()
        if not was_there:
            path.unlink()
    except OSError as error:
        raise click.BadParameter(f"{str(path)!r} cannot be written: {error.strerror}") from error
    return path


def _picture(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and path.suffix.lower() not in _PICTURES:
        raise click.BadParameter(f"{str(path)!r} must end in {', '.join(_PICTURES)}")
    return _writable(context, parameter, path)


@click.command("replay")
@click.argument("trace", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--device-slots",
    metavar="SLOTS",
    callback=_each(_device_slots),
    multiple=True,
    default=["unlimited"],
    help="Slots of the device's pool, one for each token: 4M, 65536, or unlimited (the default).",
)
@click.option(
    "--host-slots",
    metavar="SLOTS",
    callback=_each(slots_from),
    multiple=True,
    default=["0"],
    help="Slots of the host's pool. Default 0: none.",
)
@click.option(
    "--page-size", metavar="TOKENS", callback=_each(_page_size), multiple=True, default=["1"], help="Default 1."
)
@click.option(
    "--policy",
    "policies",
    metavar="NAME",
    callback=_each(_policy),
    multiple=True,
    default=["lru"],
    help=f"Who is evicted: {', '.join(policy.NAMES)}. Default lru.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_writable,
    help="Write the figures here.",
)
@click.option(
    "--plot",
    "plot_path",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_picture,
    help="Draw them here (PNG, SVG, PDF).",
)
def command(
    trace: Path,
    device_slots: list[int | None],
    host_slots: list[int],
    page_size: list[int],
    policies: list[str],
    json_path: Path | None,
    plot_path: Path | None,
) -> None:
    """Replay a TRACE through the cache and report its hit rate.

    TRACE holds a JSON object a line: Mooncake's format ("hash_ids", each 512 tokens), or "token_ids". Options may be
    repeated or hold several values with commas between them; every combination is run. K, M and G count in 1,024s.
    """
    # Before the work, not after it.
    plot = None if plot_path is None else _plotter()
    sizes = [
        CacheSize(device_slots=device, host_slots=host, page_size=page, policy=name)
        for page, name, device, host in product(page_size, policies, device_slots, host_slots)
    ]
    try:
        with reporter_for(Console(stderr=True)) as progress:
            runs = _run_all(trace, sizes, progress)
    except (TraceError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    show(Console(), trace, runs)
    try:
        if json_path is not None:
            json_path.write_text(json.dumps(as_json(trace, runs), indent=2) + "\n", encoding="utf-8")
        if plot is not None and plot_path is not None:
            plot(plot_path, trace, runs)
    except OSError as error:
        raise click.ClickException(f"the results cannot be written: {error}") from error


def _run_all(path: Path, sizes: list[CacheSize], progress: Reporter) -> list[Replay]:
    stage = f"reading {path.name}"
    progress.report(stage, 0.0)
    trace = open_trace(path)
    progress.report(stage, 1.0)
    return [_run(trace, size, progress) for size in sizes]


def _run(trace: Trace, size: CacheSize, progress: Reporter) -> Replay:
    host = f" + {slots_text(size.host_slots)} on the host" if size.host_slots else ""
    stage = f"{size.policy}, page {size.page_size}, {slots_text(size.device_slots)} slots{host}"
    progress.report(stage, 0.0)
    run = replay(trace, size, lambda num_served: progress.report(stage, num_served / trace.num_requests))
    progress.report(stage, 1.0)
    return run


def _plotter() -> Plotter:
    """Load what draws. A command without a picture needs no matplotlib, and waits for none."""
    try:
        plotter: Plotter = importlib.import_module("cli.replay.plot").plot
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise click.ClickException(
            "--plot needs the Python package matplotlib; "
            "install the extra that brings it: pip install 'radixgate[plot]'"
        ) from error
    return plotter
