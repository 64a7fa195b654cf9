"""Commands to a gateway that speaks TLS: real handshakes, with and without a certificate of the client's own."""

import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner, Result

from cli.main import main
from gateway.app import GatewayApp
from gateway.config import TlsConfig
from tests.fakes.authority import Authority
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import ADMIN_TOKEN, config_for, until
from tests.fakes.loop_thread import LoopThread
from tests.fakes.model import write_fake_adapter
from tests.fakes.worker_stack import config, running_worker
from worker.config import TlsConfig as WorkerTlsConfig


@dataclass(frozen=True)
class Deployment:
    address: str
    http: str
    ca: str
    certificate: str  # of tenant acme
    key: str

    def run(self, *arguments: str, **environ: str) -> Result:
        environ = {"RADIXGATE_TARGET": self.address, "RADIXGATE_ADMIN_TOKEN": ADMIN_TOKEN, **environ}
        return CliRunner().invoke(main, arguments, env=environ)

    @property
    def trusted(self) -> tuple[str, ...]:
        return ("--tls-ca", self.ca, "--tls-cert", self.certificate, "--tls-key", self.key)


@pytest.fixture(scope="module")
def deployment(module_redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder: Path = tmp_path_factory.mktemp("tls")
    servers, clients = Authority("Servers"), Authority("Clients")
    certificate, key = clients.issue("acme.example").write(folder, "client")
    server_certificate, server_key = servers.server().write(folder)
    tls = TlsConfig(
        cert_file=server_certificate,
        key_file=server_key,
        client_ca_file=clients.write(folder, "clients"),
        client_tenants={"acme.example": "acme"},
    )
    with LoopThread() as loop:
        exits = AsyncExitStack()

        async def start() -> GatewayApp:
            worker = await exits.enter_async_context(FakeWorker())
            app = await exits.enter_async_context(GatewayApp(config_for(module_redis_url, [worker.address], tls=tls)))
            await until(lambda: app.ready)
            return app

        app = loop.call(start())
        running = Deployment(app.address, app.http_address or "", servers.write(folder), certificate, key)
        made = running.run("tenant", "create", "acme", *running.trusted)
        assert made.exit_code == 0, made.output
        yield running
        loop.call(exits.aclose())


def test_an_operator_speaks_tls(deployment: Deployment) -> None:
    result = deployment.run("tenant", "list", "--json", *deployment.trusted)
    assert result.exit_code == 0, result.output
    assert "acme" in {each["tenant_id"] for each in json.loads(result.stdout.splitlines()[-1])}


def test_files_may_be_named_in_the_environment(deployment: Deployment) -> None:
    environ = {
        "RADIXGATE_TLS_CA": deployment.ca,
        "RADIXGATE_TLS_CERT": deployment.certificate,
        "RADIXGATE_TLS_KEY": deployment.key,
    }
    assert deployment.run("tenant", "get", "acme", **environ).exit_code == 0


def test_a_certificate_is_enough_for_a_chat_of_its_tenant(deployment: Deployment) -> None:
    result = deployment.run("chat", *deployment.trusted, "--max-new-tokens", "2", "--json", "Hello!")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1])["usage"]["completion_tokens"] == 2


def test_without_key_and_certificate_there_is_no_chat(deployment: Deployment) -> None:
    result = deployment.run("chat", "--tls-ca", deployment.ca, "Hello!")
    assert result.exit_code == 2
    assert "no API key: give --key, or set RADIXGATE_API_KEY" in result.output


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ((), "--tls-ca is for one that speaks TLS"),
        (("--tls",), "--tls-ca names others"),
        (("--tls-ca",), "--tls-cert for one that asks for certificates"),
    ],
)
def test_who_does_not_trust_or_is_not_trusted_gets_no_answer(
    deployment: Deployment, arguments: tuple[str, ...], hint: str
) -> None:
    extra = (deployment.ca,) if arguments == ("--tls-ca",) else ()
    result = deployment.run("tenant", "list", *arguments, *extra)
    assert result.exit_code == 1
    assert grpc.StatusCode.UNAVAILABLE.name in result.output
    assert hint in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tls-cert", "client.pem"), "--tls-cert and --tls-key belong together"),
        (("--tls-ca", "/nowhere/ca.pem"), "--tls-ca: /nowhere/ca.pem cannot be read: No such file or directory"),
    ],
)
def test_files_that_cannot_be_used_are_named(deployment: Deployment, arguments: tuple[str, ...], message: str) -> None:
    result = deployment.run("tenant", "list", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_isolation_is_checked_over_tls(deployment: Deployment) -> None:
    arguments = ("--http", f"https://{deployment.http}", "--only", "tenant", "--rounds", "1", "--json")
    result = deployment.run("isolation-check", *deployment.trusted, *arguments)
    assert result.exit_code == 0, result.output
    findings = json.loads(result.stdout.splitlines()[-1])["findings"]
    assert [(each["over"], each["outcome"]) for each in findings] == [("gRPC", "passed"), ("HTTP", "passed")]


def test_a_worker_is_spoken_to_over_tls_as_well(tmp_path: Path) -> None:
    workers, gateways = Authority("Workers"), Authority("Gateways")
    certificate, key = workers.server().write(tmp_path)
    own = gateways.issue("gateway").write(tmp_path, "own")
    tls = WorkerTlsConfig(cert_file=certificate, key_file=key, client_ca_file=gateways.write(tmp_path, "gateways"))
    with LoopThread() as loop:
        exits = AsyncExitStack()

        async def start() -> str:
            _, addresses = await exits.enter_async_context(running_worker(replace(config(), tls=tls)))
            return addresses.grpc

        environ = {"RADIXGATE_WORKER": loop.call(start())}
        trusted = ("--tls-ca", workers.write(tmp_path), "--tls-cert", own[0], "--tls-key", own[1])
        folder = write_fake_adapter(tmp_path / "poet", "r1")
        loaded = CliRunner().invoke(main, ["adapter", "load", "poet", folder, *trusted], env=environ)
        assert loaded.exit_code == 0, loaded.output
        listed = CliRunner().invoke(main, ["adapter", "list", *trusted, "--json"], env=environ)
        assert [each["name"] for each in json.loads(listed.stdout.splitlines()[-1])] == ["poet"]
        assert CliRunner().invoke(main, ["adapter", "list"], env=environ).exit_code == 1
        loop.call(exits.aclose())
