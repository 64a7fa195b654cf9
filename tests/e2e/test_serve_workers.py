"""`radixgate serve --workers`: several workers on one machine, one of which dies.

They simulate a model: what is looked at here is who runs, and where requests go.
"""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.e2e.stack import Client, Stack, chat_request, running_stack
from tests.processes import is_gone, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def workers(stack: Stack) -> dict[str, int]:
    """The workers' process ids by their id."""
    found = {}
    for process in stack.family():
        try:
            line = process.cmdline()
        except psutil.NoSuchProcess:
            continue
        if "worker" in line:
            found[Path(line[-1]).stem.removeprefix("worker-")] = process.pid
    return found


def answers(client: Client, num_requests: int) -> int:
    """Return how many of these requests come to their end."""
    done = 0
    for number in range(num_requests):
        messages = list(client.stream(chat_request(f"Count to {number}.", max_new_tokens=8), timeout_s=60))
        done += sum(len(message.token_ids) for message in messages) > 0
    return done


def test_a_worker_that_is_killed_is_started_again_while_the_other_one_serves(tmp_path: Path) -> None:
    with running_stack(
        tmp_path, ["--simulate", "--workers", "2", "--set", "gateway.worker_link.backoff_max_s=0.2"]
    ) as stack:
        log = tmp_path / "stack.log"
        ready = json.loads((tmp_path / "ready.json").read_text("utf-8"))
        assert len(set(ready["workers"])) == 2
        assert ready["workers"][0] == ready["worker"]
        assert ready["pid"] == stack.process.pid
        assert len(ready["metrics"]) == 3
        wait_until(lambda: stack.total("radixgate_gateway_worker_connected") == 2, timeout_s=60, what="both connected")
        before = workers(stack)
        assert set(before) == {"worker-0", "worker-1"}
        client = Client(stack.grpc, stack.keys["demo-a"])
        assert answers(client, 4) == 4

        os.kill(before["worker-1"], signal.SIGKILL)
        wait_until(
            lambda: "the worker worker-1 was ended by SIGKILL" in log.read_text("utf-8"), timeout_s=60, what="said"
        )
        assert answers(client, 4) == 4  # by the other one, where it is not back yet
        wait_until(lambda: "the worker worker-1 serves again" in log.read_text("utf-8"), timeout_s=120, what="back")
        assert "1 of 2 workers serve, and it starts again in 0.5 s" in log.read_text("utf-8")
        wait_until(lambda: stack.total("radixgate_gateway_worker_connected") == 2, timeout_s=60, what="both connected")
        after = workers(stack)
        assert after["worker-0"] == before["worker-0"]
        assert after["worker-1"] != before["worker-1"]
        assert answers(client, 4) == 4
        client.close()

        stack.process.send_signal(signal.SIGTERM)
        assert stack.process.wait(60) == 0
        assert all(is_gone(pid) for pid in (*before.values(), *after.values()))
        assert not (tmp_path / "ready.json").exists()


def test_it_ends_when_no_worker_is_left(tmp_path: Path) -> None:
    found = ["--set", "gateway.discovery.source=redis"]
    with running_stack(tmp_path, ["--simulate", "--workers", "2", *found]) as stack:
        for pid in workers(stack).values():
            os.kill(pid, signal.SIGKILL)
        assert stack.process.wait(60) == 1
        assert "was ended by SIGKILL" in (tmp_path / "stack.log").read_text("utf-8")
        assert not (tmp_path / "ready.json").exists()
