"""`radixgate gateway`: one gateway process."""

from dataclasses import asdict
from pathlib import Path

import click

from cli.options import config_options, load, ready_file_option
from cli.progress import CONNECTING, JsonProgress
from cli.ready_file import write_ready_file
from cli.validation import ConfigError, Fault
from gateway.app import Addresses, run_gateway
from metrics.logs import configure_logs


@click.command("gateway")
@config_options
@ready_file_option("Write addresses there, as JSON, once ready.")
@click.option("--progress-json", is_flag=True, hidden=True)
def command(
    file: Path | None,
    assignments: tuple[str, ...],
    check: bool,
    config_stdin: bool,
    ready_file: Path | None,
    progress_json: bool,
) -> None:
    """Run a gateway: serve clients until SIGTERM or Ctrl-C."""
    config = load(file, assignments, check, config_stdin)
    if config.gateway.redis.url is None:
        raise ConfigError([Fault("redis.url", "is not set; a gateway needs the Redis that holds tenants and keys")])
    configure_logs(config.log)

    def announce(addresses: Addresses) -> None:
        if ready_file is not None:
            write_ready_file(ready_file, asdict(addresses))

    def served() -> None:
        if progress_json:
            JsonProgress().report(CONNECTING, 1.0)

    try:
        run_gateway(config.gateway, announce, served, config.tracing)
    except (OSError, ValueError) as error:
        # What a person can mend: an address in use, a certificate that can't serve.
        raise click.ClickException(str(error)) from error
