"""`radixgate gateway`: one gateway process."""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path

import click

from cli.options import config_options, load
from cli.ready_file import write_ready_file
from cli.validation import ConfigError, Fault
from gateway.app import GatewayApp
from gateway.config import GatewayConfig
from metrics.exposition import MetricsServer
from metrics.gateway import GatewayMetrics
from metrics.logs import configure_logs


@click.command("gateway")
@config_options
@click.option("--ready-file", type=click.Path(path_type=Path), help="Write addresses there, as JSON, once ready.")
def command(
    file: Path | None, assignments: tuple[str, ...], check: bool, config_stdin: bool, ready_file: Path | None
) -> None:
    """Run a gateway: serve clients until SIGTERM or Ctrl-C."""
    config = load(file, assignments, check, config_stdin)
    if config.gateway.redis.url is None:
        raise ConfigError([Fault("redis.url", "is not set; a gateway needs the Redis that holds tenants and keys")])
    configure_logs(config.log)

    def announce(address: str, metrics_url: str | None) -> None:
        if ready_file is not None:
            write_ready_file(ready_file, {"grpc": address, "metrics": metrics_url})

    try:
        asyncio.run(_serve(config.gateway, announce))
    except OSError as error:
        raise click.ClickException(str(error)) from error


async def _serve(config: GatewayConfig, on_ready: Callable[[str, str | None], None]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    metrics = GatewayMetrics()
    async with contextlib.AsyncExitStack() as stack:
        endpoint = None
        if config.metrics is not None:
            endpoint = stack.enter_context(MetricsServer.start(metrics.registry, config.metrics))
        app = await stack.enter_async_context(GatewayApp(config, metrics))
        on_ready(app.address, endpoint.url if endpoint is not None else None)
        await stop.wait()
