"""What must hold of everything that the chart renders, in each profile."""

from typing import Any

import pytest

from gateway.config import ServerConfig
from metrics.gateway import GatewayMetrics
from metrics.worker import WorkerMetrics
from tests.deploy.chart import (
    COMPONENT,
    PROFILES,
    bytes_of,
    component,
    config_of,
    container_of,
    matches,
    matches_service,
    name_of,
    named,
    of_kind,
    pods,
    pools_of,
    render,
    values_of,
    workloads,
)
from worker.config import WorkerConfig

each_profile = pytest.mark.parametrize("profile", PROFILES)
PORTS = {
    "gateway": {"grpc": 50051, "http": 8000, "metrics": 9464},
    "worker": {"grpc": 50061, "metrics": 9101},
    "redis": {"redis": 6379},
    "pages": {"redis": 6379},
    "test": {},
}


# ----------------------------------------------------------------------------------------------------------- life cycle


@each_profile
def test_the_grace_period_is_longer_than_the_hook_and_the_drain_together(profile: str) -> None:
    for each in workloads(render("helm4", profile), "gateway", "worker"):
        pod = each["spec"]["template"]["spec"]
        hook = container_of({"spec": pod}).get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        config = config_of(render("helm4", profile), each)
        drain = config["gateway"]["server"]["drain_s"] if component(each) == "gateway" else WorkerConfig().drain_s
        assert pod["terminationGracePeriodSeconds"] >= hook + drain + 10, name_of(each)
        assert hook > 0 or component(each) == "worker", "load balancers need time to notice"


def test_the_grace_period_follows_the_values() -> None:
    sets = ("gateway.drainSeconds=300.5", "gateway.preStopSeconds=25")
    [gateway] = workloads(render("helm4", "cpu-demo", sets=sets), "gateway")
    assert gateway["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 25 + 301 + 20
    assert config_of(render("helm4", "cpu-demo", sets=sets), gateway)["gateway"]["server"] == {"drain_s": 300.5}


def test_without_a_value_gateways_drain_as_long_as_by_themselves() -> None:
    assert values_of(None)["gateway"]["drainSeconds"] == ServerConfig().drain_s


@each_profile
def test_every_server_has_the_three_probes_on_a_port_that_it_opens(profile: str) -> None:
    tls = values_of(profile)["tls"]
    for each in workloads(render("helm4", profile), "gateway", "worker"):
        kind = component(each)
        encrypted = tls["clients" if kind == "gateway" else "workers"]["enabled"]
        container = container_of(each["spec"]["template"])
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = container[name]
            if "grpc" in probe:
                assert not encrypted, "the kubelet's gRPC probe speaks no TLS"
                assert probe["grpc"]["port"] == PORTS[kind]["grpc"]
            else:
                assert probe["httpGet"]["port"] == "metrics"
                assert probe["httpGet"]["path"] == ("/readyz" if name == "readinessProbe" else "/livez")
        patience = container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"]
        assert patience >= (1800 if kind == "worker" else 120)


@each_profile
def test_ports_are_those_of_the_configuration_and_services_lead_to_them(profile: str) -> None:
    objects = render("helm4", profile)
    for owner, pod in pods(objects):
        named = {port["name"]: port["containerPort"] for port in container_of(pod).get("ports", [])}
        assert named == PORTS[pod["metadata"]["labels"][COMPONENT]], name_of(owner)
    for each in workloads(objects, "gateway", "worker"):
        config = config_of(objects, each)[component(each)]
        listeners = {"grpc": config["listen"], "metrics": config["metrics_listen"]}
        if component(each) == "gateway":
            listeners["http"] = config["http"]["listen"]
        assert {name: int(at.rpartition(":")[2]) for name, at in listeners.items()} == PORTS[component(each)]
    for service in of_kind(objects, "Service"):
        led_to = [pod for _, pod in pods(objects) if matches_service(service, pod)]
        assert led_to, name_of(service)
        for port in service["spec"]["ports"]:
            for pod in led_to:
                assert port["targetPort"] in {each["name"] for each in container_of(pod)["ports"]}


def test_the_service_of_clients_publishes_no_metrics() -> None:
    [service] = [
        each for each in of_kind(render("helm4", "gpu"), "Service") if each["metadata"]["name"].endswith("-gateway")
    ]
    assert [port["name"] for port in service["spec"]["ports"]] == ["grpc", "http"]


# --------------------------------------------------------------------------------------------------------- availability


@each_profile
def test_a_disruption_budget_bounds_evictions_and_never_forbids_them(profile: str) -> None:
    objects = render("helm4", profile)
    budgets = of_kind(objects, "PodDisruptionBudget")
    for each in workloads(objects, "gateway", "worker"):
        labels = each["spec"]["template"]["metadata"]["labels"]
        [budget] = [one for one in budgets if matches(one["spec"]["selector"], labels)]
        assert budget["spec"]["maxUnavailable"] >= 1
        assert "minAvailable" not in budget["spec"]
    assert len(budgets) == len(workloads(objects, "gateway", "worker"))


def test_gateways_are_replaced_without_one_less() -> None:
    [gateway] = workloads(render("helm4", "cpu-demo"), "gateway")
    assert gateway["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


@pytest.mark.parametrize(("profile", "kind"), [("multi-model", "HorizontalPodAutoscaler"), ("gpu", "ScaledObject")])
def test_what_scales_gateways_counts_a_metric_that_they_have_and_owns_their_number(profile: str, kind: str) -> None:
    objects = render("helm4", profile)
    [gateway] = workloads(objects, "gateway")
    scaler = named(objects, kind, gateway["metadata"]["name"])
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (gateway["kind"], gateway["metadata"]["name"])
    assert "replicas" not in gateway["spec"]
    families = {family.name for family in GatewayMetrics().registry.collect()}
    assert "radixgate_gateway_open_streams" in families
    assert "radixgate_gateway_open_streams" in str(scaler["spec"])
    others = {"HorizontalPodAutoscaler", "ScaledObject"} - {kind}
    assert not of_kind(objects, *others)


@pytest.mark.parametrize(
    ("profile", "pool", "kind"),
    [("multi-model", "small", "HorizontalPodAutoscaler"), ("gpu", "llama", "ScaledObject")],
)
def test_what_scales_a_pool_counts_metrics_that_workers_have_and_owns_their_number(
    profile: str, pool: str, kind: str
) -> None:
    objects = render("helm4", profile)
    [worker] = [one for one in workloads(objects, "worker") if one["metadata"]["labels"]["radixgate/pool"] == pool]
    scaler = named(objects, kind, worker["metadata"]["name"])
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (worker["kind"], worker["metadata"]["name"])
    assert "replicas" not in worker["spec"]
    families = {family.name for family in WorkerMetrics("w").registry.collect()}
    for metric in ("radixgate_waiting_sequences", "radixgate_running_sequences"):
        assert metric in families
        assert metric in str(scaler["spec"])
    # What a worker has cached goes with it: one at a time, and not for a moment's quiet.
    behaviour = (
        scaler["spec"].get("behavior") or scaler["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    )
    assert behaviour["scaleDown"]["stabilizationWindowSeconds"] >= 300
    assert [policy["value"] for policy in behaviour["scaleDown"]["policies"]] == [1]


def test_pods_of_a_pool_spread_over_nodes_and_zones_as_the_values_say() -> None:
    def constraints(profile: str, name: str) -> list[tuple[str, str]]:
        [found] = [each for each in workloads(render("helm4", profile)) if each["metadata"]["name"].endswith(name)]
        template = found["spec"]["template"]
        spread = template["spec"].get("topologySpreadConstraints", [])
        for each in spread:
            assert each["labelSelector"]["matchLabels"] == found["spec"]["selector"]["matchLabels"]
        return [(each["topologyKey"], each["whenUnsatisfiable"]) for each in spread]

    keys = ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
    assert constraints("gpu", "worker-llama") == [(key, "DoNotSchedule") for key in keys]
    assert constraints("multi-model", "worker-small") == [(key, "ScheduleAnyway") for key in keys]
    assert constraints("multi-model", "worker-large") == []


# -------------------------------------------------------------------------------------------------------------- workers


@each_profile
def test_every_worker_registers_under_a_name_of_its_own_at_an_address_that_it_has(profile: str) -> None:
    objects = render("helm4", profile)
    services = of_kind(objects, "Service")
    headless = {each["metadata"]["name"] for each in services if each["spec"].get("clusterIP") == "None"}
    for each in workloads(objects, "worker"):
        assert each["kind"] == "StatefulSet"
        assert each["spec"]["podManagementPolicy"] == "Parallel"
        service = each["spec"]["serviceName"]
        assert service in headless
        container = container_of(each["spec"]["template"])
        assert container["args"][3:] == [
            "--set", 'worker.worker_id="$(POD_NAME)"',
            "--set", f'worker.registry.advertise="$(POD_NAME).{service}.inference.svc:50061"',
        ]  # fmt: skip
        [pod_name] = [one for one in container["env"] if one["name"] == "POD_NAME"]
        assert pod_name["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    [gateway] = workloads(objects, "gateway")
    told = config_of(objects, gateway)["gateway"]
    assert "workers" not in told
    assert told["discovery"]["source"] == "redis"


@each_profile
def test_without_the_registry_gateways_know_every_worker_and_no_two_are_one(profile: str) -> None:
    pools = pools_of(profile)
    sets = [f"workers.{name}.autoscaling.enabled=false" for name in pools]
    objects = render("helm4", profile, sets=("registry.enabled=false", *sets))
    expected = [
        f"{each['metadata']['name']}-{number}.{each['spec']['serviceName']}.inference.svc:50061"
        for each in workloads(objects, "worker")
        for number in range(each["spec"]["replicas"])
    ]
    [gateway] = workloads(objects, "gateway")
    addresses = config_of(objects, gateway)["gateway"]["workers"]
    assert sorted(addresses) == sorted(expected)
    assert len(set(addresses)) == len(addresses) == sum(pool["replicas"] for pool in pools.values())
    assert "registry" not in str([each["spec"]["template"] for each in workloads(objects)])


@each_profile
def test_a_workers_memory_holds_its_pools_its_model_and_what_is_beside_them(profile: str) -> None:
    objects = render("helm4", profile)
    for name, pool in pools_of(profile).items():
        [each] = [one for one in workloads(objects, "worker") if one["metadata"]["labels"]["radixgate/pool"] == name]
        container = container_of(each["spec"]["template"])
        config = config_of(objects, each)["worker"]
        limit = bytes_of(container["resources"]["limits"]["memory"])
        assert bytes_of(container["resources"]["requests"]["memory"]) == limit
        gpu = pool["gpu"]["count"]
        assert config["model"]["device"] == ("cuda" if gpu else "cpu")
        assert ("memory_bytes" in config["cache"]) == (not gpu)
        [shm] = [one for one in each["spec"]["template"]["spec"]["volumes"] if one["name"] == "shm"]
        assert shm["emptyDir"]["medium"] == "Memory"
        pools = config["cache"]["host_bytes"] + config["cache"].get("memory_bytes", 0)
        beside = bytes_of(shm["emptyDir"]["sizeLimit"]) + config["lora"]["max_host_bytes"]
        assert config["cache"]["host_bytes"] == bytes_of(pool["memory"]["hostPool"])
        assert limit >= pools + beside + bytes_of(pool["memory"]["model"]) + bytes_of(pool["memory"]["overhead"])
        resource = container["resources"]["limits"].get("nvidia.com/gpu")
        assert resource == container["resources"]["requests"].get("nvidia.com/gpu") == (gpu or None)


@each_profile
def test_a_worker_on_cpus_computes_with_the_cores_that_it_asks_for(profile: str) -> None:
    objects = render("helm4", profile)
    for each in workloads(objects, "worker"):
        asked = container_of(each["spec"]["template"])["resources"]["requests"]["cpu"]
        model = config_of(objects, each)["worker"]["model"]
        assert model.get("threads") == (None if model["device"] == "cuda" else int(asked))


def test_pages_take_less_than_the_store_has() -> None:
    objects = render("helm4", "gpu")
    [worker] = workloads(objects, "worker")
    [claim] = worker["spec"]["volumeClaimTemplates"]
    storage = config_of(objects, worker)["worker"]["cache"]["storage"]
    mount = {one["name"]: one["mountPath"] for one in container_of(worker["spec"]["template"])["volumeMounts"]}
    assert storage["url"].startswith(f"file://{mount[claim['metadata']['name']]}/")
    assert storage["max_bytes"] == bytes_of(claim["spec"]["resources"]["requests"]["storage"]) * 9 // 10
    objects = render("helm4", "multi-model")
    [server] = workloads(objects, "pages")
    limit = bytes_of(container_of(server["spec"]["template"])["resources"]["limits"]["memory"])
    for worker in workloads(objects, "worker"):
        storage = config_of(objects, worker)["worker"]["cache"]["storage"]
        assert "url" not in storage  # it has a password
        assert storage["max_bytes"] < bytes_of(pools_store()["maxMemory"]) < limit


def pools_store() -> dict[str, Any]:
    store: dict[str, Any] = values_of("multi-model")["pageStore"]
    return store
