import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli.child import Child
from cli.embedded_redis import EmbeddedRedis
from cli.main import main
from tests.fakes.fake_worker import FakeWorker
from tests.processes import wait_until

ADMIN_TOKEN = "token-of-the-operator"


@pytest.fixture(scope="session")
def fake_worker() -> Iterator[FakeWorker]:
    """A worker without a model, on an event loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def make() -> FakeWorker:
        return await FakeWorker().start()

    worker = asyncio.run_coroutine_threadsafe(make(), loop).result(30)
    yield worker
    asyncio.run_coroutine_threadsafe(worker.kill(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
    loop.close()


@pytest.fixture(scope="session")
def gateway_address(
    fake_worker: FakeWorker, redis_server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A real gateway process between a real Redis and a worker without a model."""
    settings = {
        "redis": {"url": redis_server.url},
        "gateway": {
            "listen": "127.0.0.1:0",
            "http": {"listen": "127.0.0.1:0"},
            "metrics_listen": "127.0.0.1:0",
            "admin_token": ADMIN_TOKEN,
            "workers": [fake_worker.address],
            "server": {"drain_s": 1.0},
        },
    }
    ready_file = tmp_path_factory.mktemp("gateway") / "ready.json"
    child = Child.start(
        "gateway", [], settings, ready_file, on_log=lambda line: None, on_progress=lambda stage, fraction: None
    )
    wait_until(lambda: child.ready() is not None or child.death() is not None, timeout_s=60, what="gateway ready")
    ready = child.ready()
    assert ready is not None, child.death()
    yield ready["grpc"]
    child.terminate()
    assert child.wait(30)


@dataclass(frozen=True)
class Command:
    """Runs `radixgate` against the gateway as the operator."""

    address: str
    home: Path

    def run(self, *arguments: str, **options: Any) -> Result:
        environ = {
            "RADIXGATE_TARGET": self.address,
            "RADIXGATE_ADMIN_TOKEN": ADMIN_TOKEN,
            "XDG_DATA_HOME": str(self.home),
        }
        return CliRunner().invoke(main, arguments, env=environ | options.pop("env", {}), **options)

    def json(self, *arguments: str) -> Any:
        result = self.run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


@pytest.fixture
def command(gateway_address: str, tmp_path: Path) -> Command:
    return Command(gateway_address, tmp_path)


@pytest.fixture(scope="session")
def new_tenant() -> Callable[[], str]:
    """Names of tenants that no other test uses."""
    numbers = iter(range(10_000))
    return lambda: f"tenant-{next(numbers)}"
