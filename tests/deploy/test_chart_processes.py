"""What a kubelet would see: pods of the chart as real processes, asked by their probes, with the ports that they open.

Redis, a worker and a gateway run from the render of `cpu-demo`, each with its own volumes, arguments and variables;
then the pod of `helm test` runs against them.
"""

import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import redis
from cryptography import x509

from tests.deploy.chart import Manifest, named, of_kind, render, workloads
from tests.deploy.chart_pod import Pod, grpc_answers, http_answers, listening, own_address, pod_on_disk
from tests.fakes.authority import Authority
from tests.processes import wait_until
from worker.registry.keys import ENTRY

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
START_S = 240.0
# Smaller than the profile's, whose pools this machine may not have.
SMALL = ('workers.demo.memory.devicePool="64Mi"', 'workers.demo.memory.hostPool="16Mi"')


def ports_of(pod: Pod) -> set[int]:
    return {port["containerPort"] for port in pod.container["ports"]}


def probes(pod: Pod, host: str) -> dict[str, bool]:
    return {name: pod.probe(name, host) for name in PROBES}


@dataclass(frozen=True)
class Deployment:
    host: str
    objects: list[Manifest]
    redis: Pod
    gateway: Pod
    worker: Pod
    processes: dict[str, "subprocess.Popen[bytes]"]
    before: dict[str, bool]  # the gateway's probes when no worker was there


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder, host = tmp_path_factory.mktemp("pods"), own_address()
    objects = render("helm4", "cpu-demo", sets=(*SMALL, f'bindHost="{host}"'))
    replaced = {
        "$(POD_NAME).rel-radixgate-workers.inference.svc": host,
        "rel-radixgate-redis.inference.svc": host,
        "rel-radixgate-gateway.inference.svc": host,
        "bind * -::*": f"bind {host}",
        "-h 127.0.0.1": f"-h {host}",
    }
    made = {
        name: pod_on_disk(objects, each["spec"]["template"], folder / name, replaced)
        for each in workloads(objects)
        for name in [each["spec"]["template"]["spec"]["containers"][0]["name"]]
    }
    with made["redis"].running() as server, made["gateway"].running() as gateway:
        wait_until(lambda: made["redis"].probe("startupProbe", host), timeout_s=START_S, what="redis")
        wait_until(lambda: made["gateway"].probe("startupProbe", host), timeout_s=START_S, what="gateway")
        before = probes(made["gateway"], host)
        with made["worker"].running() as worker:
            processes = {"redis": server, "gateway": gateway, "worker": worker}
            wait_until(
                lambda: made["worker"].probe("readinessProbe", host) or worker.poll() is not None,
                timeout_s=START_S,
                what="worker",
            )
            assert worker.poll() is None, made["worker"].said
            wait_until(lambda: made["gateway"].probe("readinessProbe", host), timeout_s=START_S, what="gateway")
            yield Deployment(host, objects, made["redis"], made["gateway"], made["worker"], processes, before)


def test_every_probe_succeeds_once_the_processes_serve(deployment: Deployment) -> None:
    for pod in (deployment.redis, deployment.gateway, deployment.worker):
        assert probes(pod, deployment.host) == dict.fromkeys(PROBES, True)


def test_a_gateway_without_a_worker_lives_and_is_not_ready(deployment: Deployment) -> None:
    assert deployment.before == {"startupProbe": True, "readinessProbe": False, "livenessProbe": True}


def test_processes_open_the_ports_of_their_containers_and_no_others(deployment: Deployment) -> None:
    for name, pod in (("redis", deployment.redis), ("gateway", deployment.gateway), ("worker", deployment.worker)):
        assert listening(deployment.processes[name], deployment.host) == ports_of(pod), name


def test_what_probes_ask_where_there_is_tls_answers_without_it_as_well(deployment: Deployment) -> None:
    for port in (9464, 9101):
        for path in ("livez", "readyz", "metrics"):
            assert http_answers(f"http://{deployment.host}:{port}/{path}")
    assert not http_answers(f"http://{deployment.host}:9464/nothing")
    assert not grpc_answers(f"{deployment.host}:50051", "radixgate.v1.Nothing")


def test_the_server_of_tenants_keeps_what_it_has_and_asks_for_the_password(deployment: Deployment) -> None:
    with redis.Redis(host=deployment.host) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    url = (deployment.gateway.folder / "run/radixgate/redis/url").read_text()
    with redis.Redis.from_url(url) as client:
        settings = client.config_get("maxmemory*", "appendonly")
        assert settings["maxmemory-policy"] == "noeviction"
        assert settings["maxmemory"] == str(512 << 20)
        assert settings["appendonly"] == "yes"


def test_a_password_of_ones_own_may_have_quotes_and_backslashes(tmp_path: Path) -> None:
    host, password = own_address().rpartition(".")[0] + ".253", "a\"b\\c $d 'e"
    objects = render("helm4", "cpu-demo", sets=('redis.existingSecret="own"', 'registry.existingSecret="workers"'))
    [workload] = workloads(objects, "redis")
    replaced = {"bind * -::*": f"bind {host}", "-h 127.0.0.1": f"-h {host}"}
    extra = {"own": {"password": password.encode()}, "workers": {"password": password.encode()}}
    server = pod_on_disk(objects, workload["spec"]["template"], tmp_path / "redis", replaced, extra)
    with server.running() as process:
        wait_until(lambda: server.probe("startupProbe", host) or process.poll() is not None, timeout_s=60, what="redis")
        assert process.poll() is None, server.said
        with redis.Redis(host=host, password=password) as client:
            assert client.ping()
        with redis.Redis(host=host, username="worker", password=password) as worker:
            assert worker.ping()


def test_a_worker_sees_the_registry_and_nothing_of_tenants_and_keys(deployment: Deployment) -> None:
    url = (deployment.worker.folder / "run/radixgate/registry/url").read_text()
    with redis.Redis.from_url(url) as worker:
        assert worker.hget(f"{ENTRY}the-pods-name-0", "address") == f"{deployment.host}:50061".encode()
        for call in (
            lambda: worker.get("{radixgate}:extra-key-secret"),
            lambda: worker.keys("*"),
            lambda: worker.config_get("*"),
            worker.flushall,
            worker.acl_list,
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                call()


def test_no_password_shows_in_the_list_of_processes(deployment: Deployment) -> None:
    folder = deployment.gateway.folder / "run/radixgate"
    secrets = [path.read_text() for path in folder.glob("*/*")]
    secrets += [path.read_text() for path in (deployment.worker.folder / "run/radixgate").glob("*/*")]
    assert len(secrets) == 4
    for process in deployment.processes.values():
        shown = psutil.Process(process.pid)
        for text in (*shown.cmdline(), *shown.environ().values()):
            assert not any(secret in text for secret in secrets)


def test_the_pod_of_helm_test_finds_tenants_isolated(deployment: Deployment, tmp_path: Path) -> None:
    [pod] = of_kind(deployment.objects, "Pod")
    test = pod_on_disk(deployment.objects, pod, tmp_path / "test", deployment.gateway.replaced)
    with test.running() as process:
        assert process.wait(240) == 0, test.said
    assert "tenant" in test.said


def test_on_sigterm_a_gateway_ends_well_before_its_grace_period(deployment: Deployment) -> None:
    """The last test of this file: it ends the processes."""
    for name in ("gateway", "worker"):
        process = deployment.processes[name]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, name


def test_with_tls_the_probes_of_a_gateway_need_no_certificate(tmp_path: Path) -> None:
    host, authority = own_address().rpartition(".")[0] + ".254", Authority()
    objects = render("helm4", "tls", sets=(f'bindHost="{host}"',))
    issued = authority.issue("gateway", [x509.DNSName("localhost")])
    files = {"tls.crt": issued.chain, "tls.key": issued.key, "ca.crt": authority.pem}
    extra = dict.fromkeys(("rel-radixgate-tls", "rel-radixgate-gateway-tls", "clients-ca"), files)
    url = {"rel-radixgate-redis.inference.svc:6379": f"{host}:9"}
    [workload] = workloads(objects, "gateway")
    gateway = pod_on_disk(objects, workload["spec"]["template"], tmp_path / "gateway", url, extra)
    with gateway.running() as process:
        wait_until(
            lambda: gateway.probe("startupProbe", host) or process.poll() is not None, timeout_s=60, what="gateway"
        )
        assert process.poll() is None, gateway.said
        assert probes(gateway, host) == {"startupProbe": True, "readinessProbe": False, "livenessProbe": True}
        assert listening(process, host) == ports_of(gateway)
        assert not grpc_answers(f"{host}:50051", "")
    assert named(objects, "Service", "rel-radixgate-gateway")["spec"]["ports"][1]["appProtocol"] == "https"
