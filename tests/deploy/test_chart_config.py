"""The configuration that the chart renders is one that the processes take, and means what the values say."""

import json
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cli.config import Config, config_from, read_tree
from tests.deploy.chart import HELMS, PROFILES, component, config_of, config_text, render, workloads
from worker.registry.entry import check_registry

SECRETS = {
    "RADIXGATE_ADMIN_TOKEN": "a-token-that-is-long-enough",
    "RADIXGATE_EXTRA_KEY_SECRET": "a-secret-that-is-long-enough",
    "RADIXGATE_REDIS_URL": "redis://:password@redis:6379/0",
}
PAGES = {"RADIXGATE_STORAGE_URL": "redis://:password@pages:6379/0"}
REGISTRY = {"RADIXGATE_REGISTRY_URL": "redis://worker:password@redis:6379/0"}
POD_NAME = "2024-10-10"  # of a release that is named like a date


def checked(objects: Any, workload: Any, folder: Path) -> Config:
    """Return what `--check` would show: the same code, without a process each."""
    file = folder / "radixgate.toml"
    file.write_text(config_text(objects, workload))
    if component(workload) == "gateway":
        return config_from(read_tree(file, [], SECRETS))
    secrets: dict[str, str] = {}
    for known in (PAGES, REGISTRY):
        secrets |= {name: url for name, url in known.items() if f"{name}_FILE" in str(workload["spec"])}
    [container] = workload["spec"]["template"]["spec"]["containers"]
    arguments = [each.replace("$(POD_NAME)", POD_NAME) for each in container["args"]]
    assignments = [each for before, each in pairwise(arguments) if before == "--set"]
    return config_from(read_tree(file, assignments, secrets))


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize("profile", PROFILES)
def test_the_processes_take_what_is_rendered(helm: str, profile: str, tmp_path: Path) -> None:
    objects = render(helm, profile)
    for workload in workloads(objects, "gateway", "worker"):
        config = checked(objects, workload, tmp_path)
        assert config.log.format == "json"
        if component(workload) == "worker":
            assert config.worker.worker_id == "2024-10-10"
            assert config.worker.listen == "0.0.0.0:50061"
            assert config.worker.registry.url == REGISTRY["RADIXGATE_REGISTRY_URL"]
            assert config.worker.registry.advertise == "2024-10-10.rel-radixgate-workers.inference.svc:50061"
            check_registry(config.worker)
        else:
            assert config.gateway.admin_token == SECRETS["RADIXGATE_ADMIN_TOKEN"]
            assert config.gateway.http.listen == "0.0.0.0:8000"
            assert config.gateway.discovery.source == "redis"


def test_a_pools_values_arrive_at_its_workers(tmp_path: Path) -> None:
    objects = render("helm4", "gpu")
    [workload] = workloads(objects, "worker")
    worker = checked(objects, workload, tmp_path).worker
    assert (worker.model.model, worker.model.device) == ("/models/llama-3.1-8b-instruct", "cuda")
    assert worker.cache.host_bytes == 64 << 30
    assert (worker.cache.policy, worker.cache.write_policy, worker.cache.pin) == (
        "lhd",
        "write_through_selective",
        "auto",
    )
    assert worker.engine.max_running == 128
    assert worker.lora.adapters["support"].tenants == ("acme",)
    assert worker.cache.storage.url == "file:///var/lib/radixgate/pages/store"


def test_a_stores_url_comes_from_its_secret(tmp_path: Path) -> None:
    objects = render("helm4", "external-redis")
    [workload] = workloads(objects, "worker")
    storage = checked(objects, workload, tmp_path).worker.cache.storage
    assert storage.url == PAGES["RADIXGATE_STORAGE_URL"]
    assert storage.max_bytes == (100 << 30) * 8 // 10


def test_without_the_registry_gateways_have_a_list_and_workers_nothing_of_redis(tmp_path: Path) -> None:
    sets = ("registry.enabled=false", "workers.a.replicas=2", 'gateway.extraWorkers=["gpu-7.example:50071"]')
    objects = render("helm4", sets=sets)
    [gateway] = workloads(objects, "gateway")
    config = checked(objects, gateway, tmp_path).gateway
    pool = [f"rel-radixgate-worker-a-{number}.rel-radixgate-workers.inference.svc:50061" for number in range(2)]
    assert config.discovery.source == "static"
    assert list(config.workers) == [*pool, "gpu-7.example:50071"]
    [worker] = workloads(objects, "worker")
    assert checked(objects, worker, tmp_path).worker.registry.url is None


def test_workers_of_others_are_beside_those_that_register(tmp_path: Path) -> None:
    objects = render("helm4", sets=('gateway.extraWorkers=["gpu-7.example:50071"]',))
    [gateway] = workloads(objects, "gateway")
    assert checked(objects, gateway, tmp_path).gateway.discovery.extra_workers == ("gpu-7.example:50071",)


def test_a_drain_of_workers_arrives_at_them_and_in_their_grace_period(tmp_path: Path) -> None:
    sets = ("workers.a.drainSeconds=90.5", "workers.a.preStopSeconds=5", "workers.a.stopMarginSeconds=40")
    objects = render("helm4", sets=sets)
    [worker] = workloads(objects, "worker")
    assert checked(objects, worker, tmp_path).worker.drain_s == 90.5
    assert worker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 5 + 91 + 40


def test_what_is_passed_on_arrives_at_gateways(tmp_path: Path) -> None:
    objects = render("helm4", "external-redis")
    [workload] = workloads(objects, "gateway")
    gateway = checked(objects, workload, tmp_path).gateway
    assert gateway.policies.default.requests_per_minute == 600
    assert gateway.policies.default.max_deadline_s == 120.5
    assert gateway.quota.store_away == "refuse"


def test_gateways_and_workers_trust_each_others_certificates(tmp_path: Path) -> None:
    objects = render("helm4", "tls")
    [gateway] = workloads(objects, "gateway")
    [worker] = workloads(objects, "worker")
    link = checked(objects, gateway, tmp_path).gateway.worker_link.tls
    tls = checked(objects, worker, tmp_path).worker.tls
    [issued] = [each for each in objects if each["metadata"]["name"] == "rel-radixgate-worker-tls"]
    assert link.server_name in issued["spec"]["dnsNames"]
    assert link.ca_file is not None
    assert tls.client_ca_file is not None
    for workload, paths in ((gateway, [link.ca_file, link.cert_file, link.key_file]), (worker, [tls.cert_file])):
        [container] = workload["spec"]["template"]["spec"]["containers"]
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert all(path is not None and path.rpartition("/")[0] in mounts for path in paths)


ODD = {
    "integer": 7,
    "large": 68719476736,
    "float": 0.25,
    "negative": -3,
    "yes": True,
    "no": False,
    "text": 'quotes " and \\ and <tags> & ünïcode',
    "control": "tab\t line\n separator\u2028",
    "beyond whole numbers": 1e300,
    "digits": "0123",
    "list": [1, 2.5, "three"],
    "tables": [{"a": 1}, {"b": "two"}],
    "a.dotted key": 1,
    'a "key"\n': 1,
    "empty": {},
    "section": {"deep": {"deeper": 1}, "with space": {"x": "y"}},
}


@pytest.mark.parametrize("helm", HELMS)
def test_any_value_survives_the_way_to_toml(helm: str) -> None:
    """Numbers above all: YAML's arrive in templates as floats, and settings that count refuse 7.0."""
    objects = render(helm, values=json.dumps({"gateway": {"config": {"gateway": {"odd": ODD}}}}))
    [gateway] = workloads(objects, "gateway")
    odd = config_of(objects, gateway)["gateway"]["odd"]
    assert odd == ODD
    assert [type(value) for value in odd.values()] == [type(ODD[key]) for key in odd]


def test_what_neither_toml_nor_yaml_takes_as_it_is_survives_as_well() -> None:
    """Helm 3 refuses such values by itself."""
    odd = {"delete\x7f": "delete\x7f next\x85 mark\ufeff end\x9f"}
    objects = render("helm4", values=json.dumps({"gateway": {"config": {"gateway": {"odd": odd}}}}))
    [gateway] = workloads(objects, "gateway")
    assert config_of(objects, gateway)["gateway"]["odd"] == odd


def test_workers_take_pools_and_adapters_of_no_size(tmp_path: Path) -> None:
    nothing = ("workers.a.memory.adapters=0", "workers.a.memory.hostPool=0", "workers.a.replicas=0")
    objects = render("helm4", sets=("registry.enabled=false", *nothing))
    for workload in workloads(objects, "gateway", "worker"):
        config = checked(objects, workload, tmp_path)
        assert not config.gateway.workers or component(workload) == "worker"


def test_what_a_pool_says_comes_before_the_defaults_even_nothing() -> None:
    """Zero, false and an empty list are values, too."""
    of_all = {"tolerations": [{"key": "gpu"}], "memory": {"hostPool": "2Gi"}, "preStopSeconds": 5, "gpu": {"count": 1}}
    own = {"tolerations": [], "memory": {"hostPool": 0}, "preStopSeconds": 0, "gpu": {"count": 0}}
    objects = render("helm4", values=json.dumps({"workerDefaults": of_all, "workers": {"a": own, "b": {}}}))
    one, other = workloads(objects, "worker")
    spec = one["spec"]["template"]["spec"]
    assert not {"tolerations"} & spec.keys()
    assert "lifecycle" not in spec["containers"][0]
    assert config_of(objects, one)["worker"]["cache"]["host_bytes"] == 0
    assert config_of(objects, one)["worker"]["model"]["device"] == "cpu"
    assert config_of(objects, other)["worker"]["cache"]["host_bytes"] == 2 << 30


def test_tracing_is_told_what_the_values_say(tmp_path: Path) -> None:
    sets = ('tracing.endpoint="http://[2001:db8::1]:4319"', "tracing.sampleRatio=0.5", "tracing.askedPerMinute=3")
    objects = render("helm4", sets=sets)
    for workload in workloads(objects, "gateway", "worker"):
        tracing = checked(objects, workload, tmp_path).tracing
        assert (tracing.endpoint, tracing.sample_ratio, tracing.asked_per_minute) == (sets[0][18:-1], 0.5, 3)


def test_an_ipv6_cluster_binds_all_addresses() -> None:
    objects = render("helm4", "cpu-demo", sets=('bindHost="[::]"',))
    for workload in workloads(objects, "gateway", "worker"):
        text = config_text(objects, workload)
        assert "0.0.0.0" not in text
        assert tomllib.loads(text)[component(workload)]["listen"].startswith("[::]:")
