"""Every value of the chart arrives where it belongs, and what Kubernetes is told of a pod is what was meant."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.deploy.chart import (
    CHART,
    PROFILES,
    Manifest,
    bytes_of,
    component,
    config_of,
    container_of,
    named,
    of_kind,
    pods,
    pools_of,
    render,
    workloads,
)
from worker.registry.keys import COMMANDS

each_profile = pytest.mark.parametrize("profile", PROFILES)


def egress_of(objects: list[Manifest], of: str) -> list[dict[str, Any]]:
    [policy] = [each for each in of_kind(objects, "NetworkPolicy") if component(each) == of]
    rules: list[dict[str, Any]] = policy["spec"]["egress"]
    return rules


@each_profile
def test_probes_ask_for_the_service_that_answers_when_it_should(profile: str) -> None:
    """A gateway has started before there is a worker, and is ready with one; a worker serves with its model."""
    services = {
        ("gateway", "startupProbe"): "",
        ("gateway", "readinessProbe"): "radixgate.v1.InferenceService",
        ("worker", "startupProbe"): "radixgate.v1.WorkerService",
        ("worker", "readinessProbe"): "radixgate.v1.WorkerService",
    }
    for each in workloads(render("helm4", profile), "gateway", "worker"):
        container = container_of(each["spec"]["template"])
        for name in ("startupProbe", "readinessProbe"):
            if "grpc" in container[name]:
                assert container[name]["grpc"]["service"] == services[component(each), name]
        assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "metrics"}
        liveness = container["livenessProbe"]
        assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60, "a busy process is no dead one"


@each_profile
def test_pods_get_no_variables_of_services_and_secrets_are_for_their_group_alone(profile: str) -> None:
    for _, pod in pods(render("helm4", profile)):
        assert pod["spec"]["enableServiceLinks"] is False, "RADIXGATE_..._PORT would look like a setting"
        for volume in pod["spec"]["volumes"]:
            assert volume.get("secret", {"defaultMode": 0o440})["defaultMode"] == 0o440


@each_profile
def test_workers_have_names_before_they_are_ready(profile: str) -> None:
    service = named(render("helm4", profile), "Service", "rel-radixgate-workers")
    assert service["spec"]["publishNotReadyAddresses"] is True


@each_profile
def test_evictions_may_take_pods_that_are_not_healthy(profile: str) -> None:
    """Else a pod that never gets ready holds a node's drain for ever."""
    for each in of_kind(render("helm4", profile), "PodDisruptionBudget"):
        assert each["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


@each_profile
def test_a_worker_has_time_to_end_what_it_computes_and_to_write_what_it_keeps(profile: str) -> None:
    objects = render("helm4", profile)
    for name, pool in pools_of(profile).items():
        [worker] = [one for one in workloads(objects, "worker") if one["metadata"]["labels"]["radixgate/pool"] == name]
        grace = worker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert grace == pool["preStopSeconds"] + pool["drainSeconds"] + pool["stopMarginSeconds"]


def test_names_are_looked_up_over_udp_and_tcp() -> None:
    objects = render("helm4", "cpu-demo")
    for of in ("gateway", "worker", "test"):
        [rule] = [rule for rule in egress_of(objects, of) if 53 in [port["port"] for port in rule["ports"]]]
        assert {port["protocol"] for port in rule["ports"]} == {"UDP", "TCP"}


def test_further_egress_is_of_gateways_or_of_workers() -> None:
    one = {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 443, "protocol": "TCP"}]}
    other = {"to": [{"ipBlock": {"cidr": "10.2.0.0/16"}}]}
    objects = render("helm4", values=json.dumps({"networkPolicy": {"gatewayEgress": [one], "workerEgress": [other]}}))
    assert [each for each in egress_of(objects, "gateway") if each in (one, other)] == [one]
    assert [each for each in egress_of(objects, "worker") if each in (one, other)] == [other]


def test_a_store_has_room_beside_what_it_may_hold() -> None:
    """Tenants' is copied on write while its file is rewritten; pages' has buffers of clients and fragmentation."""
    objects = render("helm4", "multi-model")
    for of, percent in (("redis", 150), ("pages", 120)):
        [server] = workloads(objects, of)
        config = named(objects, "ConfigMap", server["metadata"]["name"])["data"]["valkey.conf"]
        [maximum] = [int(line.split()[1]) for line in config.splitlines() if line.startswith("maxmemory ")]
        limit = bytes_of(container_of(server["spec"]["template"])["resources"]["limits"]["memory"])
        assert limit * 100 >= maximum * percent
        assert ("maxmemory-policy noeviction" in config) == ("appendonly yes" in config) == (of == "redis")


def test_pods_go_where_the_values_say() -> None:
    where: dict[str, Any] = {
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "priorityClassName": "first",
    }
    constraint = {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway"}
    values = {
        "gateway": {**where, "topologySpreadConstraints": [constraint]},
        "workerDefaults": {**where, "topologySpreadConstraints": [constraint], "runtimeClassName": "nvidia"},
        "redis": where,
        "pageStore": {**where, "enabled": True},
    }
    for each in workloads(render("helm4", values=json.dumps(values))):
        spec = each["spec"]["template"]["spec"]
        assert {key: spec.get(key) for key in where} == where, each["metadata"]["name"]
        if component(each) in {"gateway", "worker"}:
            assert constraint in spec["topologySpreadConstraints"]
        assert spec.get("runtimeClassName") == ("nvidia" if component(each) == "worker" else None)


def test_the_service_of_clients_is_as_the_values_say() -> None:
    own = {
        "type": "LoadBalancer",
        "annotations": {"a": "b"},
        "grpcPort": 443,
        "httpPort": 80,
        "grpcAppProtocol": "kubernetes.io/h2c",
        "loadBalancerSourceRanges": ["10.0.0.0/8"],
    }
    service = named(
        render("helm4", values=json.dumps({"gateway": {"service": own}})), "Service", "rel-radixgate-gateway"
    )
    assert service["metadata"]["annotations"] == {"a": "b"}
    spec = service["spec"]
    assert (spec["type"], spec["loadBalancerSourceRanges"]) == ("LoadBalancer", ["10.0.0.0/8"])
    assert [(port["port"], port["targetPort"], port["appProtocol"]) for port in spec["ports"]] == [
        (443, "grpc", "kubernetes.io/h2c"),
        (80, "http", "http"),
    ]


def test_routes_lead_to_the_port_of_their_protocol() -> None:
    [ingress] = of_kind(render("helm4", "multi-model"), "Ingress")
    [rule] = ingress["spec"]["rules"]
    [path] = rule["http"]["paths"]
    assert path["backend"]["service"] == {"name": "rel-radixgate-gateway", "port": {"name": "http"}}
    objects = render("helm4", "tls")
    for kind, port in (("HTTPRoute", 8000), ("GRPCRoute", 50051)):
        [route] = of_kind(objects, kind)
        assert route["spec"]["rules"] == [{"backendRefs": [{"name": "rel-radixgate-gateway", "port": port}]}]


def test_certificates_are_for_the_names_and_uses_of_their_owners() -> None:
    objects = render("helm4", "tls")
    issued = {each["spec"]["secretName"]: each["spec"] for each in of_kind(objects, "Certificate")}
    uses = {name.removeprefix("rel-radixgate-"): spec["usages"][-1] for name, spec in issued.items()}
    assert uses == {"tls": "server auth", "worker-tls": "server auth", "gateway-tls": "client auth"}
    names = issued["rel-radixgate-tls"]["dnsNames"]
    assert {"llm.example.org", "rel-radixgate-gateway", "rel-radixgate-gateway.inference.svc"} <= set(names)
    [gateway] = workloads(objects, "gateway")
    mounted = {volume["secret"]["secretName"] for volume in volumes_of(gateway) if "secret" in volume}
    assert {"rel-radixgate-tls", "rel-radixgate-gateway-tls", "clients-ca"} <= mounted
    [worker] = workloads(objects, "worker")
    assert {volume["secret"]["secretName"] for volume in volumes_of(worker) if "secret" in volume} == {
        "rel-radixgate-worker-tls",
        "rel-radixgate-registry",
    }


def volumes_of(workload: Manifest) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = workload["spec"]["template"]["spec"]["volumes"]
    return volumes


def test_tls_on_one_side_is_on_that_side_alone() -> None:
    clients = ("tls.clients.enabled=true", 'tls.clients.secretName="c"')
    workers = ("tls.workers.enabled=true", 'tls.workers.workerSecretName="w"', 'tls.workers.gatewaySecretName="g"')
    for sets, encrypted in ((clients, "gateway"), (workers, "worker")):
        for each in workloads(render("helm4", sets=sets), "gateway", "worker"):
            container = container_of(each["spec"]["template"])
            assert ("grpc" in container["readinessProbe"]) == (component(each) != encrypted)


def test_a_client_of_tls_needs_a_certificate_where_an_authority_is_named_and_the_test_has_one() -> None:
    objects = render("helm4", "tls")
    config = named(objects, "ConfigMap", "rel-radixgate-gateway")["data"]["radixgate.toml"]
    assert 'client_ca_file = "/run/radixgate/client-ca/ca.crt"' in config
    [pod] = of_kind(objects, "Pod")
    arguments = container_of(pod)["args"]
    mounts = [mount["mountPath"] for mount in container_of(pod)["volumeMounts"]]
    for option in ("--tls-ca", "--tls-cert", "--tls-key"):
        [path] = [each.removeprefix(f"{option}=") for each in arguments if each.startswith(f"{option}=")]
        assert path.rpartition("/")[0] in mounts


@each_profile
def test_the_pod_of_helm_test_runs_when_asked_and_once(profile: str) -> None:
    [pod] = of_kind(render("helm4", profile), "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert (pod["spec"]["restartPolicy"], pod["spec"]["activeDeadlineSeconds"]) == ("Never", 600)


@pytest.mark.parametrize("kind", ["podMonitor", "serviceMonitor"])
def test_monitors_scrape_metrics_as_often_as_the_values_say(kind: str) -> None:
    own = {"enabled": True, "interval": "5s", "scrapeTimeout": "4s", "labels": {"release": "mine"}}
    objects = render("helm4", values=json.dumps({"monitoring": {kind: own}}))
    [monitor] = of_kind(objects, "PodMonitor", "ServiceMonitor")
    endpoints = monitor["spec"].get("podMetricsEndpoints") or monitor["spec"]["endpoints"]
    assert endpoints == [{"port": "metrics", "path": "/metrics", "interval": "5s", "scrapeTimeout": "4s"}]
    assert monitor["metadata"]["labels"]["release"] == "mine"


def test_scalers_keep_to_their_bounds() -> None:
    own = {"enabled": True, "minReplicas": 3, "maxReplicas": 7, "openStreamsPerReplica": 11}
    for kind, low, high in (
        ("HorizontalPodAutoscaler", "minReplicas", "maxReplicas"),
        ("ScaledObject", "minReplicaCount", "maxReplicaCount"),
    ):
        values = {"gateway": {"autoscaling": {**own, "kind": kind, "prometheusUrl": "http://p:9090"}}}
        [scaler] = of_kind(render("helm4", values=json.dumps(values)), kind)
        assert (scaler["spec"][low], scaler["spec"][high]) == (3, 7)
        assert '"11"' in json.dumps(scaler["spec"])


def paths_in(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in tree.items():
        yield from paths_in(value, (*path, key)) if isinstance(value, Mapping) and value else [(*path, key)]


def test_whatever_the_chart_sets_in_a_configuration_is_refused_in_values() -> None:
    """A drain that is set beside gateway.drainSeconds would not be in the grace period, for example."""
    owned = set(
        re.findall(r'"((?:gateway|worker|tracing)[\w.]*)" "', (CHART / "templates" / "_config.tpl").read_text())
    )
    free = {("log", "format"), ("worker", "model", "threads")}
    sets = ('tracing.endpoint="http://c:4317"', 'workers.a.memory.hostPool="1Gi"', 'workers.a.storage.kind="file"')
    objects = render("helm4", "tls", sets=sets)
    for each in workloads(objects, "gateway", "worker"):
        for path in set(paths_in(config_of(objects, each))) - free:
            above = {".".join(path[: length + 1]) for length in range(len(path))}
            assert above & owned, path
    assert "gateway.server.drain_s" in owned


def test_the_workers_user_of_redis_may_do_what_registering_takes_and_nothing_else() -> None:
    objects = render("helm4", "cpu-demo")
    start = named(objects, "ConfigMap", "rel-radixgate-redis")["data"]["start.sh"]
    [rules] = re.findall(r'"user worker on #\$digest (.*)"', start)
    expected = ["resetkeys", "~{radixgate}:worker*", "resetchannels", "-@all", *COMMANDS]
    assert rules.split() == expected


def test_a_server_is_replaced_when_its_configuration_or_its_start_changes() -> None:
    objects = render("helm4", "multi-model")
    for each in workloads(objects, "redis", "pages"):
        files = named(objects, "ConfigMap", each["metadata"]["name"])["data"]
        both = "\n".join(files[name].rstrip("\n") for name in ("valkey.conf", "start.sh"))
        annotations = each["spec"]["template"]["metadata"]["annotations"]
        assert annotations["checksum/config"] == hashlib.sha256(both.encode()).hexdigest()
