import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from tests.fakes.model import FakeModel, write_fake_adapter
from tests.fakes.worker_stack import config
from worker.app import WorkerAddresses, WorkerApp


@contextmanager
def running_worker() -> Iterator[str]:
    """Run a worker around a fake model on an event loop of its own; provide its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[WorkerApp, WorkerAddresses]:
        app = WorkerApp(config(), FakeModel())
        return app, await app.start()

    app, addresses = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    try:
        yield addresses.grpc
    finally:
        asyncio.run_coroutine_threadsafe(app.stop(drain_timeout_s=0.0), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


@pytest.fixture
def worker() -> Iterator[str]:
    with running_worker() as address:
        yield address


def run(worker: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["adapter", *arguments], env={"RADIXGATE_WORKER": worker})


def json_of(worker: str, *arguments: str) -> Any:
    result = run(worker, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])  # what comes before is the worker's log


def test_an_adapter_that_was_loaded_is_listed_until_it_is_unloaded(worker: str, tmp_path: Path) -> None:
    folder = write_fake_adapter(tmp_path, "r1", rank=8)
    loaded = json_of(worker, "load", "poet", folder, "--tenant", "acme", "--tenant", "globex")
    assert (loaded["revision"], loaded["rank"], loaded["tenants"]) == ("r1", 8, ["acme", "globex"])
    assert json_of(worker, "list") == [loaded]
    gone = json_of(worker, "unload", "poet", "--tenant", "globex", "--tenant", "acme")
    assert gone == {"name": "poet", "failed_sequences": 0, "dropped_tokens": 0}
    assert json_of(worker, "list") == []


def test_a_folder_may_be_named_from_where_one_is(worker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fake_adapter(tmp_path / "poet", "r1")
    monkeypatch.chdir(tmp_path)
    assert json_of(worker, "load", "poet", "poet")["revision"] == "r1"


def test_people_get_one_line_per_field(worker: str, tmp_path: Path) -> None:
    output = run(worker, "load", "poet", write_fake_adapter(tmp_path, "r1")).output
    assert "tenants:        all\n" in output
    assert "targets:        q_proj, v_proj\n" in output


def test_a_pipe_gets_tab_separated_lines(worker: str, tmp_path: Path) -> None:
    run(worker, "load", "poet", write_fake_adapter(tmp_path, "r1"), "--tenant", "acme")
    (line,) = run(worker, "list").output.splitlines()
    assert line.split("\t")[:3] == ["poet", "r1", "acme"]


def test_what_is_wrong_is_told_with_the_field(worker: str) -> None:
    result = run(worker, "load", "Poet", "/nowhere")
    assert result.exit_code == 1
    assert "INVALID_ARGUMENT: name: is 'Poet'; must have 1 to 64 lower-case letters" in result.output
    result = run(worker, "load", "poet", "/nowhere")
    assert "INVALID_ARGUMENT: path: fake_adapter.json: missing in /nowhere" in result.output


def test_a_wrong_revision_is_not_unloaded(worker: str, tmp_path: Path) -> None:
    run(worker, "load", "poet", write_fake_adapter(tmp_path, "r1"))
    result = run(worker, "unload", "poet", "--revision", "r2")
    assert result.exit_code == 1
    assert "NOT_FOUND: adapter 'poet' is loaded in revision r1, not r2" in result.output
    assert len(json_of(worker, "list")) == 1


def test_where_no_worker_listens_people_are_told_how_to_start_one() -> None:
    result = run("127.0.0.1:1", "list")
    assert result.exit_code == 1
    assert "`radixgate serve` starts it" in result.output
