"""The command itself: from options to a plan."""

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import click
from rich.console import Console

from cli.size.plan import ITEM_BYTES, DoesNotFitError, Geometry, Machine, NumberFormat, Traffic, plan
from cli.size.report import as_json, show
from cli.size.speeds import Speeds, arrivals
from cli.size.units import BYTES
from hicache.tiers.shapes import LayerShape
from worker.errors import WorkerStartError

_GEOMETRY = "worker.model.geometry"  # loads torch: only when a model is named
_BUILTINS = {"torch", "transformers"}
_WIDTH = 100  # of what goes to no terminal


class _Silent:
    def report(self, stage: str, fraction: float) -> None:
        return


def _floors(context: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> dict[str, float]:
    floors: dict[str, float] = {}
    for text in texts:
        tenant, separator, fraction = text.rpartition("=")
        try:
            floor = float(fraction)
        except ValueError:
            floor = math.nan
        if not separator or not tenant or not 0 <= floor < 1:
            raise click.BadParameter(
                f"{text!r} does not read TENANT=FRACTION, with a fraction of at least 0 and below 1"
            )
        floors[tenant] = floor
    if sum(floors.values()) >= 1:
        raise click.BadParameter(f"all together must be less than 1, got {sum(floors.values()):g}")
    return floors


def _grouped(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


_POSITIVE = click.IntRange(min=1)
_SPEED = click.FloatRange(min=0, min_open=True)

_of_the_model = _grouped(
    click.option("--model", help="A known name, a Hugging Face folder, a config.json or a GGUF file."),
    click.option("--layers", type=_POSITIVE, help="Instead of a model: layers that attend."),
    click.option("--kv-heads", type=_POSITIVE, help="Heads of keys and values in each layer."),
    click.option("--head-dim", type=_POSITIVE, help="Width of a head of keys."),
    click.option("--value-dim", type=_POSITIVE, help="Width of a head of values, if it is another."),
    click.option("--parameters", type=float, help="How many numbers the model is made of, as in 8.03e9."),
    click.option(
        "--dtype", type=click.Choice(["auto", *ITEM_BYTES]), default="auto", show_default=True,
        help="Number format of weights and KV; auto: bf16 on a GPU, on a CPU what a worker here would take.",
    ),
)  # fmt: skip
_of_the_machine = _grouped(
    click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True),
    click.option("--device-memory", type=BYTES, help="All of the GPU's; with --device cpu, the main memory to use."),
    click.option(
        "--utilization", type=click.FloatRange(0, 1, min_open=True), default=0.9, show_default=True,
        help="Share of it for weights and KV; forward passes need the rest.",
    ),
    click.option("--host-memory", type=BYTES, help="Of the host pool; 0: none.  [default: as a worker chooses]"),
    click.option("--storage", type=BYTES, default=0, help="Of the store that workers share.  [default: none]"),
    click.option(
        "--overhead", type=BYTES, default="2GiB", show_default=True,
        help="Main memory of the process beside weights and pools.",
    ),
)  # fmt: skip
_of_the_traffic = _grouped(
    click.option("--context", type=_POSITIVE, default=4096, show_default=True, help="Tokens of one conversation."),
    click.option("--concurrent", type=_POSITIVE, default=1, show_default=True, help="Sequences at a time."),
    click.option("--page-size", type=_POSITIVE, default=1, show_default=True, help="Tokens; the grain of reuse."),
    click.option(
        "--storage-page-size", type=_POSITIVE, default=64, show_default=True, help="Tokens; the grain of storage."
    ),
    click.option(
        "--floor", "floors", multiple=True, callback=_floors, metavar="TENANT=FRACTION",
        help="What others' traffic cannot take from a tenant. May be repeated.",
    ),
)  # fmt: skip
_of_speed = _grouped(
    click.option("--prefill-speed", type=_SPEED, metavar="TOKENS/S", help="How fast prompts are computed."),
    click.option("--copy-speed", type=BYTES, metavar="25GB/s", help="From the host to the device."),
    click.option("--storage-speed", type=BYTES, metavar="2GB/s", help="From storage to the host."),
)


@click.command("size")
@_of_the_model
@_of_the_machine
@_of_the_traffic
@_of_speed
@click.option("--json", "json_wanted", is_flag=True, help="Print JSON, for scripts.")
def command(
    model: str | None,
    device: Any,
    device_memory: int | None,
    utilization: float,
    host_memory: int | None,
    storage: int,
    overhead: int,
    json_wanted: bool,
    **options: Any,
) -> None:
    """Say what a model's KV takes, how much fits, and what to set for that.

    Nothing is loaded but the model's configuration. What it says is arithmetic: bytes and slots are those of a worker
    with these settings; times follow from the speeds that are given.
    """
    machine = Machine(
        device=device, device_bytes=device_memory, utilization=utilization, host_bytes=host_memory,
        storage_bytes=storage, overhead_bytes=overhead,
    )  # fmt: skip
    try:
        result = plan(_geometry(model, device, options), machine, _traffic(options))
    except (DoesNotFitError, WorkerStartError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    speeds = Speeds(
        prefill_tokens_per_s=options["prefill_speed"],
        copy_bytes_per_s=options["copy_speed"],
        storage_bytes_per_s=options["storage_speed"],
    )
    ways = arrivals(speeds, result.bytes_per_token, result.context_tokens)
    if json_wanted:
        click.echo(as_json(result, ways, model))
        return
    console = Console(highlight=False, markup=False)
    show(console if console.is_terminal else Console(highlight=False, width=_WIDTH), result, ways, model)


def _traffic(options: dict[str, Any]) -> Traffic:
    return Traffic(
        context_tokens=options["context"],
        concurrent=options["concurrent"],
        page_size=options["page_size"],
        storage_page_size=options["storage_page_size"],
        floors=options["floors"],
    )


def _geometry(model: str | None, device: str, options: dict[str, Any]) -> Geometry:
    shape = {name: options[name] for name in ("layers", "kv_heads", "head_dim")}
    given = [f"--{name.replace('_', '-')}" for name, value in shape.items() if value is not None]
    if model is None and len(given) < len(shape):
        raise click.UsageError("give --model, or all of --layers, --kv-heads and --head-dim")
    if model is not None and (given or options["value_dim"]):
        raise click.UsageError(f"--model says what {', '.join(given) or '--value-dim'} would say; keep one of them")
    if model is not None:
        return _geometry_of(model, device, options)
    layer = LayerShape(shape["kv_heads"], shape["head_dim"], options["value_dim"] or shape["head_dim"])
    name = f"{shape['layers']} layers of {layer.kv_heads} x {layer.key_dim}"
    number_format = NumberFormat("bf16" if options["dtype"] == "auto" else options["dtype"])
    return Geometry(name, (layer,) * shape["layers"], number_format, _parameters(options))


def _geometry_of(model: str, device: str, options: dict[str, Any]) -> Geometry:
    """Read a model's configuration, as a worker would."""
    try:
        reading = importlib.import_module(_GEOMETRY)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in _BUILTINS:
            raise
        raise click.ClickException(
            f"--model needs the Python package {error.name} (pip install 'radixgate[worker]'); without it, give "
            "--layers, --kv-heads and --head-dim"
        ) from error
    read = reading.read_geometry(model, _Silent())
    wanted = options["dtype"]
    number_format = NumberFormat(reading.best_format(device) if wanted == "auto" else wanted)
    return Geometry(
        read.name, read.layers, number_format, _parameters(options) or read.num_parameters, read.context_length
    )


def _parameters(options: dict[str, Any]) -> int | None:
    return None if options["parameters"] is None else int(options["parameters"])
