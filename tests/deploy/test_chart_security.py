"""Who may do and reach what: security of pods, network policies, labels and selectors, in each profile."""

from collections import Counter
from typing import Any

import pytest

from tests.deploy.chart import (
    COMPONENT,
    INSTANCE,
    PROFILES,
    Manifest,
    component,
    container_of,
    matches,
    matches_service,
    name_of,
    of_kind,
    pods,
    render,
    workloads,
)

each_profile = pytest.mark.parametrize("profile", PROFILES)


# ------------------------------------------------------------------------------------------------------------- security


@each_profile
def test_every_pod_runs_as_nobody_with_a_root_that_is_read_only_and_no_token(profile: str) -> None:
    objects = render("helm4", profile)
    accounts = {each["metadata"]["name"]: each for each in of_kind(objects, "ServiceAccount")}
    for owner, pod in pods(objects):
        spec, container = pod["spec"], container_of(pod)
        assert spec["securityContext"] == {
            "runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
            "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"},
        }, name_of(owner)  # fmt: skip
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"]["drop"] == ["ALL"]
        assert spec["automountServiceAccountToken"] is False
        assert accounts[spec["serviceAccountName"]]["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]
        writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
        roots = ("/tmp", "/var/lib/radixgate", "/dev/shm", "/data")
        assert all(path.startswith(roots) for path in writable), name_of(owner)
        volumes = {volume["name"] for volume in spec["volumes"]} | {
            claim["metadata"]["name"] for claim in owner["spec"].get("volumeClaimTemplates", [])
        }
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes, name_of(owner)


@each_profile
def test_every_pod_has_a_network_policy_for_both_directions(profile: str) -> None:
    objects = render("helm4", profile)
    for owner, pod in pods(objects):
        [policy] = policies_of(objects, pod["metadata"]["labels"])
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"], name_of(owner)
        named = {port["name"] for port in container_of(pod).get("ports", [])}
        opened = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        assert opened == named, name_of(owner)


def policies_of(objects: list[Manifest], labels: dict[str, str]) -> list[Manifest]:
    return [each for each in of_kind(objects, "NetworkPolicy") if matches(each["spec"]["podSelector"], labels)]


def reachable(objects: list[Manifest], source: str, target: str) -> set[str]:
    """Return the names of `target`'s ports that pods of component `source` may connect to, by both ends' policies."""
    by_component = {pod["metadata"]["labels"][COMPONENT]: pod for _, pod in pods(objects)}
    if not {source, target} <= by_component.keys():
        return set()
    labels = {name: pod["metadata"]["labels"] for name, pod in by_component.items()}
    numbers = {port["name"]: port["containerPort"] for port in container_of(by_component[target]).get("ports", [])}
    [outgoing] = policies_of(objects, labels[source])
    [incoming] = policies_of(objects, labels[target])
    out = {
        port["port"]
        for rule in outgoing["spec"]["egress"]
        if "to" not in rule or any(peer_matches(peer, labels[target]) for peer in rule["to"])
        for port in rule["ports"]
    }
    into = {
        port["port"]
        for rule in incoming["spec"]["ingress"]
        if "from" not in rule or any(peer_matches(peer, labels[source]) for peer in rule["from"])
        for port in rule["ports"]
    }
    return {name for name in into if {name, numbers.get(name)} & out}


def peer_matches(peer: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a peer is a pod of this namespace with these labels."""
    return "podSelector" in peer and "namespaceSelector" not in peer and matches(peer["podSelector"], labels)


@each_profile
def test_pods_reach_each_other_where_they_must_and_nowhere_else(profile: str) -> None:
    objects = render("helm4", profile)
    components = {pod["metadata"]["labels"][COMPONENT] for _, pod in pods(objects)}
    found = {
        (source, target): ports
        for source in components
        for target in components
        if (ports := reachable(objects, source, target))
    }
    expected = {("gateway", "worker"): {"grpc"}, ("test", "gateway"): {"grpc"}}
    if "redis" in components:
        expected["gateway", "redis"] = {"redis"}
        expected["worker", "redis"] = {"redis"}  # as a user that sees the registry alone
    if "pages" in components:
        expected["worker", "pages"] = {"redis"}
    assert found == expected


def test_without_the_registry_no_worker_reaches_the_redis_of_tenants() -> None:
    objects = render("helm4", "multi-model", sets=(
        "registry.enabled=false", "workers.small.autoscaling.enabled=false",
    ))  # fmt: skip
    assert reachable(objects, "worker", "redis") == set()
    assert reachable(objects, "gateway", "redis") == {"redis"}


@each_profile
def test_nobody_from_elsewhere_reaches_anything_but_gateways(profile: str) -> None:
    """Whoever speaks to a worker speaks for any tenant. A rule without peers, or with none, is open to everybody."""
    for policy in of_kind(render("helm4", profile), "NetworkPolicy"):
        for rule in policy["spec"]["ingress"]:
            ports = {port["port"] for port in rule["ports"]}
            if component(policy) == "gateway" and ports == {"grpc", "http"}:
                continue
            assert rule["from"], name_of(policy)
            if ports != {"metrics"}:
                for peer in rule["from"]:
                    assert set(peer) == {"podSelector"}
                    assert {INSTANCE, COMPONENT} <= peer["podSelector"]["matchLabels"].keys()


@each_profile
def test_metrics_are_for_the_namespace_of_monitoring_alone(profile: str) -> None:
    for policy in of_kind(render("helm4", profile), "NetworkPolicy"):
        for rule in policy["spec"]["ingress"]:
            if {"port": "metrics"} in rule["ports"]:
                labels = {"kubernetes.io/metadata.name": "monitoring"}
                assert rule == {
                    "ports": [{"port": "metrics"}],
                    "from": [{"namespaceSelector": {"matchLabels": labels}}],
                }


def test_egress_goes_to_what_the_values_name_and_to_names() -> None:
    def rules(profile: str, of: str, *sets: str) -> list[dict[str, Any]]:
        objects = render("helm4", profile, sets=sets)
        [policy] = [each for each in of_kind(objects, "NetworkPolicy") if component(each) == of]
        found: list[dict[str, Any]] = policy["spec"]["egress"]
        return found

    redis = {"to": [{"ipBlock": {"cidr": "10.20.0.0/16"}}], "ports": [{"port": 6380, "protocol": "TCP"}]}
    assert redis in rules("external-redis", "gateway")
    assert {**redis, "ports": [{"port": 6379, "protocol": "TCP"}]} in rules("external-redis", "worker")
    tracing = {"ports": [{"port": 4317, "protocol": "TCP"}]}
    assert tracing in rules("gpu", "gateway")
    assert tracing in rules("gpu", "worker")
    for of in ("gateway", "worker", "test"):
        dns = [rule for rule in rules("cpu-demo", of) if {"port": 53, "protocol": "UDP"} in rule["ports"]]
        assert len(dns) == 1
        assert dns[0]["to"]
    elsewhere = rules("cpu-demo", "gateway", 'gateway.extraWorkers=["gpu-7.example:50071"]')
    assert {"ports": [{"port": 50071, "protocol": "TCP"}]} in elsewhere


def test_clients_may_be_narrowed_and_the_test_still_gets_in() -> None:
    objects = render("helm4", "external-redis")
    [policy] = [each for each in of_kind(objects, "NetworkPolicy") if component(each) == "gateway"]
    [rule] = [each for each in policy["spec"]["ingress"] if {"port": "http"} in each["ports"]]
    assert {"namespaceSelector": {"matchLabels": {"team": "apps"}}} in rule["from"]
    assert len(rule["from"]) == 2
    assert reachable(objects, "test", "gateway") == {"grpc"}


# ------------------------------------------------------------------------------------------------- labels and selectors


@each_profile
def test_selectors_match_their_own_pods_and_no_others(profile: str) -> None:
    objects = render("helm4", profile)
    for each in workloads(objects):
        selector = each["spec"]["selector"]
        matched = [name_of(owner) for owner, pod in pods(objects) if matches(selector, pod["metadata"]["labels"])]
        assert matched == [name_of(each)]
    names = Counter((each["kind"], each["metadata"]["name"]) for each in objects)
    assert max(names.values()) == 1
    for each in objects:
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "radixgate"
        assert labels[INSTANCE] == "rel"
        assert labels["helm.sh/chart"].startswith("radixgate-")
        assert all(len(value) <= 63 for value in labels.values())
        assert each["metadata"].get("namespace") == "inference"


def test_monitors_find_gateways_and_workers_once_each() -> None:
    objects = render("helm4", "gpu")
    [monitor] = of_kind(objects, "PodMonitor")
    found = [
        name_of(owner)
        for owner, pod in pods(objects)
        if matches(monitor["spec"]["selector"], pod["metadata"]["labels"])
    ]
    assert found == ["Deployment/rel-radixgate-gateway", "StatefulSet/rel-radixgate-worker-llama"]
    objects = render("helm4", "multi-model")
    [monitor] = of_kind(objects, "ServiceMonitor")
    services = [
        each for each in of_kind(objects, "Service") if matches(monitor["spec"]["selector"], each["metadata"]["labels"])
    ]
    scraped = [name_of(owner) for owner, pod in pods(objects) for each in services if matches_service(each, pod)]
    assert sorted(scraped) == [
        "Deployment/rel-radixgate-gateway",
        "StatefulSet/rel-radixgate-worker-large",
        "StatefulSet/rel-radixgate-worker-small",
    ]
    [endpoint] = monitor["spec"]["endpoints"]
    for each in services:
        assert endpoint["port"] in {port["name"] for port in each["spec"]["ports"]}
