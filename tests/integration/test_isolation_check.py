"""`radixgate isolation-check` on whole deployments, sound ones and ones that are broken in one way each."""

import json
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from radixgate.v1 import worker_pb2
from tests.fakes.gateway_stack import ADMIN_TOKEN, Stack, gateway
from tests.fakes.isolation_faults import (
    LastingPrefixes,
    NoAdapters,
    NoBarrier,
    OneKeyForAll,
    OneKeyPerTenant,
    TellingTimes,
)
from tests.fakes.loop_thread import LoopThread
from tests.fakes.model import write_fake_adapter
from tests.fakes.worker_proxy import Fault, Honest, WorkerProxy
from tests.fakes.worker_stack import config, running_worker

PAIRS = "30"
TOKEN_S = 120e-6  # of a prompt token that was not cached: a new prompt takes 30 ms


@dataclass(frozen=True)
class Deployment:
    """A real gateway and a real worker around a model that is a fake, and a proxy between the two."""

    proxy: WorkerProxy
    address: str
    http: str
    keys: dict[str, str]
    folders: tuple[str, str]  # of adapters of different weights

    def check(self, *arguments: str, admin: bool = False, keys: bool = True) -> Result:
        environ = {
            "RADIXGATE_TARGET": self.address,
            "RADIXGATE_API_KEY": self.keys["acme"] if keys else "",
            "RADIXGATE_OTHER_API_KEY": self.keys["globex"] if keys else "",
            "RADIXGATE_ADMIN_TOKEN": ADMIN_TOKEN if admin else "",
        }
        return CliRunner().invoke(main, ["isolation-check", "--pairs", PAIRS, "--rounds", "1", *arguments], env=environ)

    def found(self, *arguments: str, over: str = "gRPC", **options: bool) -> tuple[int, dict[str, dict[str, Any]]]:
        """Return the exit status, and the findings about one API by the check's name."""
        result = self.check("--json", *arguments, **options)
        assert result.stdout, result.output
        document = json.loads(result.stdout.splitlines()[-1])
        assert document["exit_code"] == result.exit_code
        findings = [finding for finding in document["findings"] if finding["over"] == over]
        return result.exit_code, {finding["check"]: finding for finding in findings}

    @contextmanager
    def spoilt_by(self, fault: Fault) -> Iterator[None]:
        self.proxy.fault = fault
        try:
            yield
        finally:
            self.proxy.fault = Honest()


@pytest.fixture(scope="module")
def deployment(module_redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder: Path = tmp_path_factory.mktemp("adapters")
    folders = (write_fake_adapter(folder / "r1", "r1"), write_fake_adapter(folder / "r2", "r2"))
    with LoopThread() as loop:
        exits = AsyncExitStack()

        async def start() -> tuple[WorkerProxy, Stack]:
            _, addresses = await exits.enter_async_context(running_worker(config(num_slots=65_536)))
            proxy = await exits.enter_async_context(WorkerProxy(addresses.grpc))
            stack = await exits.enter_async_context(
                gateway(module_redis_url, [proxy.address], tenants=["acme", "globex"])
            )
            await stack.ready()
            request = worker_pb2.LoadAdapterRequest(name="poet", path=folders[0], tenants=["acme"])
            await proxy.LoadAdapter(request, None)  # type: ignore[arg-type]
            return proxy, stack

        proxy, stack = loop.call(start())
        yield Deployment(proxy, stack.app.address, stack.app.http_address or "", dict(stack.keys), folders)
        loop.call(exits.aclose())


def outcomes(findings: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: finding["outcome"] for name, finding in findings.items()}


def failed(finding: dict[str, Any]) -> list[str]:
    return [seen["what"] for seen in finding["observations"] if not seen["holds"]]


def test_a_sound_deployment_passes_every_check(deployment: Deployment) -> None:
    folders = [word for folder in deployment.folders for word in ("--adapter-folder", folder)]
    status, findings = deployment.found("--strict", "--skip", "timing", *folders, admin=True)
    names = ("tenant", "scope", "adapter", "names", "claims", "version", "revision", "public")
    assert outcomes(findings) == dict.fromkeys(names, "passed"), findings
    assert status == 0


def test_http_is_checked_as_well_where_it_is_named(deployment: Deployment) -> None:
    arguments = ("--http", f"http://{deployment.http}/v1", "--skip", "timing")
    status, findings = deployment.found(*arguments, over="HTTP", admin=True)
    names = ("tenant", "scope", "adapter", "names", "claims", "public")
    assert outcomes(findings) == dict.fromkeys(names, "passed"), findings
    assert status == 0
    with deployment.spoilt_by(OneKeyForAll()):
        status, findings = deployment.found(*arguments, "--only", "tenant", over="HTTP")
    assert outcomes(findings) == {"tenant": "broken"}
    assert status == 1


def test_without_the_operators_token_what_needs_it_is_skipped_and_said_to_be(deployment: Deployment) -> None:
    assert deployment.found("--skip", "timing")[0] == 0
    status, findings = deployment.found("--skip", "timing", "--strict")
    assert {name for name, finding in findings.items() if finding["outcome"] == "skipped"} == {
        "version", "revision", "public",
    }  # fmt: skip
    assert "needs the admin token" in findings["version"]["reason"]
    assert status == 2


@pytest.mark.parametrize(
    ("fault", "check", "claims"),
    [
        (OneKeyForAll(), "tenant", {"the other tenant finds nothing of it"}),
        (OneKeyPerTenant(), "scope", {"another scope finds nothing of it", "without a scope nothing of it is found"}),
        (OneKeyPerTenant(), "version", {"after its cache was invalidated it finds nothing of it"}),
        (NoAdapters(), "adapter", {"the adapter finds nothing of the base model's"}),
        (NoAdapters(), "revision", {"with other weights under its name nothing of it is found"}),
        (NoBarrier(), "public", {"the other tenant finds nothing behind the prefix"}),
        (LastingPrefixes(), "public", {"nobody finds the prefix once it is deleted"}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str | set) else None,
)
def test_broken_isolation_is_found_by_the_check_that_is_about_it(
    deployment: Deployment, fault: Fault, check: str, claims: set[str]
) -> None:
    folders = [word for folder in deployment.folders for word in ("--adapter-folder", folder)]
    deployment.proxy.drops_cache = not isinstance(fault, LastingPrefixes)
    with deployment.spoilt_by(fault):
        status, findings = deployment.found("--only", check, *folders, admin=True)
    deployment.proxy.drops_cache = True
    assert outcomes(findings) == {check: "broken"}, findings
    assert claims <= set(failed(findings[check]))
    assert status == 1


def test_a_fault_of_one_kind_is_not_taken_for_another(deployment: Deployment) -> None:
    with deployment.spoilt_by(OneKeyPerTenant()):
        _, findings = deployment.found("--only", "tenant", "--only", "scope")
    assert outcomes(findings) == {"tenant": "passed", "scope": "broken"}
    with deployment.spoilt_by(TellingTimes(TOKEN_S)):
        _, findings = deployment.found("--only", "tenant")
    assert outcomes(findings) == {"tenant": "passed"}


@pytest.mark.alone
def test_times_of_a_sound_deployment_tell_nothing(deployment: Deployment) -> None:
    with deployment.spoilt_by(Honest(TOKEN_S)):
        status, findings = deployment.found("--only", "timing")
    assert outcomes(findings) == {"timing": "passed"}, findings
    assert status == 0


@pytest.mark.alone
def test_times_that_tell_are_found(deployment: Deployment) -> None:
    with deployment.spoilt_by(TellingTimes(TOKEN_S)):
        status, findings = deployment.found("--only", "timing")
    assert outcomes(findings) == {"timing": "broken"}, findings
    assert failed(findings["timing"])[0] == "the other tenant cannot tell it from a new one"
    assert status == 1


def test_times_that_tell_nothing_even_of_ones_own_cache_prove_nothing(deployment: Deployment) -> None:
    with deployment.spoilt_by(Honest(token_s=0.0)):
        status, findings = deployment.found("--only", "timing", "--pairs", "20")
    assert outcomes(findings) == {"timing": "inconclusive"}
    assert "a tenant's own cached prompt is faster than a new one" in findings["timing"]["reason"]
    assert status == 2


def test_a_cache_that_finds_nothing_at_all_is_no_proof_of_isolation(deployment: Deployment) -> None:
    class Forgetful(Honest):
        def __init__(self) -> None:
            super().__init__()
            self._number = 0

        def spoil(self, submit: worker_pb2.Submit) -> None:
            self._number += 1
            for segment in submit.prompt:
                segment.extra_key = self._number.to_bytes(16, "little")

    with deployment.spoilt_by(Forgetful()):
        status, findings = deployment.found("--only", "tenant")
    assert outcomes(findings) == {"tenant": "inconclusive"}
    assert status == 2


@pytest.mark.parametrize("over", ["gRPC", "HTTP"])
def test_without_keys_tenants_and_adapters_are_made_and_removed(deployment: Deployment, over: str) -> None:
    folders = [word for folder in deployment.folders for word in ("--adapter-folder", folder)]
    arguments = ("--strict", "--skip", "timing", "--http", f"http://{deployment.http}", *folders)
    status, findings = deployment.found(*arguments, over=over, keys=False, admin=True)
    assert set(outcomes(findings).values()) == {"passed"}, findings
    assert {"adapter", "names"} <= findings.keys()
    assert status == 0
    environ = {"RADIXGATE_TARGET": deployment.address, "RADIXGATE_ADMIN_TOKEN": ADMIN_TOKEN}
    for listing in (("tenant", "list"), ("prefix", "list"), ("adapter", "list")):
        left = CliRunner().invoke(main, listing, env=environ).output
        assert "isolation-check" not in left


def test_addresses_and_keys_may_come_from_a_ready_file(deployment: Deployment, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    tenants = {"acme": deployment.keys["acme"], "globex": deployment.keys["globex"]}
    ready.write_text(json.dumps({"grpc": deployment.address, "worker": "", "metrics": [], "tenants": tenants}))
    arguments = ["isolation-check", "--ready-file", str(ready), "--only", "tenant", "--rounds", "1"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "passed\ttenant\tgRPC\t\t" in result.stdout.splitlines()


def test_the_token_of_a_ready_file_is_that_of_its_deployment(deployment: Deployment, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    tenants = {"acme": deployment.keys["acme"], "globex": deployment.keys["globex"]}
    ready.write_text(json.dumps({"grpc": deployment.address, "tenants": tenants, "admin_token": ADMIN_TOKEN}))
    arguments = ["isolation-check", "--ready-file", str(ready), "--only", "version", "--strict"]
    result = CliRunner().invoke(main, arguments, env={"RADIXGATE_ADMIN_TOKEN": "that-of-another-deployment"})
    assert result.exit_code == 0, result.output


def test_one_tenant_is_not_two(deployment: Deployment) -> None:
    result = deployment.check("--other-key", deployment.keys["acme"])
    assert result.exit_code == 2
    assert "--key and --other-key are the same key" in result.output


def test_two_keys_of_one_tenant_are_no_two_tenants(deployment: Deployment) -> None:
    environ = {"RADIXGATE_TARGET": deployment.address, "RADIXGATE_ADMIN_TOKEN": ADMIN_TOKEN}
    made = CliRunner().invoke(main, ["key", "create", "acme", "--json"], env=environ)
    second = json.loads(made.stdout.splitlines()[-1])["secret"]
    status, findings = deployment.found("--other-key", second, "--only", "tenant")
    assert outcomes(findings) == {"tenant": "broken"}  # as far as anybody can tell from outside
    assert status == 1


def test_nobody_there_means_that_nothing_could_be_told(deployment: Deployment) -> None:
    result = deployment.check("--target", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "UNAVAILABLE" in result.output
