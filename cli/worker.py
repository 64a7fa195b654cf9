"""`radixgate worker`: one worker process."""

from pathlib import Path

import click
from rich.console import Console

from cli.config import config_from, set_at
from cli.options import config_options, ready_file_option, settings_tree, show_and_exit
from cli.progress import JsonProgress, reporter_for
from cli.ready_file import write_ready_file
from metrics.logs import configure_logs
from worker.app import WorkerAddresses, run_worker
from worker.errors import WorkerStartError

_SIMULATION = ("worker", "simulation", "enabled")


@click.command("worker")
@config_options
@ready_file_option("Write addresses there, as JSON, once ready.")
@click.option(
    "--simulate", is_flag=True, help="Serve no model: model its times, and answer with tokens that mean nothing."
)
@click.option("--progress-json", is_flag=True, hidden=True)
def command(
    file: Path | None,
    assignments: tuple[str, ...],
    check: bool,
    config_stdin: bool,
    ready_file: Path | None,
    simulate: bool,
    progress_json: bool,
) -> None:
    """Run a worker: load the model and serve gateways until SIGTERM or Ctrl-C."""
    tree = settings_tree(file, assignments, config_stdin)
    if simulate:
        set_at(tree, _SIMULATION, value=True)
    config = config_from(tree)
    if check:
        show_and_exit(config)
    configure_logs(config.log)
    reporter = JsonProgress() if progress_json else reporter_for(Console(stderr=True))

    def announce(addresses: WorkerAddresses) -> None:
        reporter.finish()
        if ready_file is not None:
            write_ready_file(ready_file, {"grpc": addresses.grpc, "metrics": addresses.metrics})

    try:
        with reporter:
            run_worker(config.worker, reporter, announce, config.tracing)
    except (WorkerStartError, OSError) as error:
        # What a person can mend: a model that is not there or not supported, an address in use.
        raise click.ClickException(str(error)) from error
