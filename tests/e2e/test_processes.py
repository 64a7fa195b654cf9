"""Starting and ending: exit codes, and nothing left behind."""

import signal
from pathlib import Path

import pytest

from tests.e2e.stack import Client, running_stack
from tests.processes import is_gone, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_ends_the_stack_cleanly_while_it_serves(
    tmp_path: Path, tiny_arguments: tuple[str, ...], number: signal.Signals
) -> None:
    with running_stack(tmp_path, tiny_arguments) as stack:
        family = [process.pid for process in stack.family()]
        assert len(family) >= 4, "supervisor, Redis, worker and gateway"
        client = Client(stack.grpc, stack.keys["demo-a"])
        client.ask("Hello!", max_new_tokens=2)
        stack.process.send_signal(number)
        assert stack.process.wait(60) == 0
        client.close()

    wait_until(lambda: all(is_gone(pid) for pid in family), what="no process left")


def test_a_killed_supervisor_takes_its_children_with_it(tmp_path: Path, tiny_arguments: tuple[str, ...]) -> None:
    with running_stack(tmp_path, tiny_arguments) as stack:
        family = [process.pid for process in stack.family()]
        stack.process.kill()
        wait_until(lambda: all(is_gone(pid) for pid in family), timeout_s=30, what="no process left")
