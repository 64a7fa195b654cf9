"""Values that are legal and unusual: names that YAML reads as something else, empty lists, labels that meet."""

import json
import re
from collections.abc import Hashable
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from tests.deploy.chart import (
    PROFILES,
    component,
    container_of,
    named,
    of_kind,
    pods,
    render,
    render_text,
    workloads,
)

# Every value that is a name in the cluster, as a number or a truth of YAML.
NAMES: dict[str, Any] = {
    "secrets": {"adminTokenKey": "1", "extraKeySecretKey": "on"},
    "imagePullSecrets": [{"name": "2"}],
    "redis": {"existingSecret": "3", "priorityClassName": "4", "persistence": {"storageClassName": "5"}},
    "pageStore": {"enabled": True, "existingSecret": "6"},
    "gateway": {
        "priorityClassName": "yes",
        "podLabels": {"7": "8"},
        "podAnnotations": {"9": "10"},
        "ingress": {"enabled": True, "className": "1e3", "hosts": ["*.example.org", "11.12"]},
    },
    "workers": {
        "on": {
            "memory": {"hostPool": 1073741824},
            "storage": {"kind": "file", "size": 53687091200, "storageClassName": "13"},
            "models": {"existingClaim": "14", "mountPath": "/my, models"},
            "priorityClassName": "15",
            "runtimeClassName": "16",
            "nodeSelector": {"17": "18"},
        },
        "null": {
            "model": "/my, models: #1",
            "memory": {"hostPool": "1Gi"},
            "storage": {"kind": "redis"},
            "models": {"hostPath": "/srv, {x}"},
        },
        "y": {"memory": {"hostPool": "1Gi"}, "storage": {"kind": "file", "existingClaim": "19"}},
        "n": {"models": {"image": "models:20"}},
    },
    "tls": {
        "clients": {"enabled": True, "secretName": "21", "clientCaSecretName": "22", "clientCaKey": "23"},
        "workers": {"enabled": True, "workerSecretName": "24", "gatewaySecretName": "25", "serverName": "26"},
    },
    "test": {"clientCertSecretName": "27", "model": "my, models: #1"},
}


@pytest.mark.parametrize(("release", "namespace"), [("2024", "1234"), ("on", "0x1f"), ("1e3", "true")])
def test_names_that_look_like_numbers_or_truths_stay_names(release: str, namespace: str) -> None:
    objects = render("helm4", values=json.dumps(NAMES), release=release, namespace=namespace)
    for each in objects:
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
        assert each["metadata"]["namespace"] == namespace
        assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == release
    assert {each["metadata"]["labels"]["radixgate/pool"] for each in workloads(objects, "worker")} == set(
        NAMES["workers"]
    )
    [test] = of_kind(objects, "Pod")
    assert "--model=my, models: #1" in container_of(test)["args"]


def test_names_in_objects_of_operators_stay_names_as_well() -> None:
    values = {
        "fullnameOverride": "on",
        "monitoring": {"podMonitor": {"enabled": True}, "rules": {"enabled": True}, "dashboards": {"enabled": True}},
        "gateway": {"autoscaling": {"enabled": True, "kind": "ScaledObject"}},
    }
    for each in render("helm4", "tls", values=json.dumps(values), release="1e3", namespace="1234"):
        assert isinstance(each["metadata"]["name"], str)
        assert each["metadata"]["namespace"] == "1234"
        assert all(isinstance(value, str) for value in each["metadata"]["labels"].values())
        if each["kind"] == "PodMonitor":
            assert each["spec"]["namespaceSelector"]["matchNames"] == ["1234"]
            assert each["spec"]["selector"]["matchLabels"]["app.kubernetes.io/instance"] == "1e3"


class _Strict(yaml.CSafeLoader):
    """Refuses a key that is there twice, as an API server does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        assert not twice, twice
        return super().construct_mapping(node, deep)


def test_no_key_is_there_twice_in_any_profile() -> None:
    for profile in PROFILES:
        assert list(yaml.load_all(render_text("helm4", profile), _Strict))


def test_labels_that_are_set_in_two_places_are_there_once_and_the_nearer_one_counts() -> None:
    near = {"labels": {"team": "near"}}
    values = {
        "commonLabels": {"team": "far", "release": "prometheus"},
        "gateway": {"podLabels": {"team": "near"}},
        "workerDefaults": {"podLabels": {"team": "near"}},
        "monitoring": {
            "podMonitor": {"enabled": True, **near},
            "rules": {"enabled": True, **near},
            "dashboards": {"enabled": True, "label": "release", "labelValue": "grafana"},
        },
    }
    text = render_text("helm4", values=json.dumps(values))
    objects = [each for each in yaml.load_all(text, _Strict) if each is not None]
    for each in of_kind(objects, "PodMonitor", "PrometheusRule"):
        assert each["metadata"]["labels"]["team"] == "near"
        assert each["metadata"]["labels"]["release"] == "prometheus"
    for each in workloads(objects, "gateway", "worker"):
        assert each["metadata"]["labels"]["team"] == "far"
        assert each["spec"]["template"]["metadata"]["labels"]["team"] == "near"
    assert len([each for each in objects if each["metadata"]["labels"]["release"] == "grafana"]) == 4


def test_an_empty_list_of_who_may_scrape_lets_nobody_in() -> None:
    """To Kubernetes an empty list of peers is everybody."""
    for each in of_kind(render("helm4", sets=("networkPolicy.monitoring=[]",)), "NetworkPolicy"):
        assert {"port": "metrics"} not in [port for rule in each["spec"]["ingress"] for port in rule["ports"]]
        assert all(rule.get("from", True) for rule in each["spec"]["ingress"])


@pytest.mark.parametrize("host", ["collector", "[2001:db8::1]", "10.1.2.3"])
def test_the_way_to_a_collector_is_open_on_its_port_alone(host: str) -> None:
    objects = render("helm4", sets=(f'tracing.endpoint="http://{host}:4319/"',))
    for each in of_kind(objects, "NetworkPolicy"):
        open_to_all = [port["port"] for rule in each["spec"]["egress"] if "to" not in rule for port in rule["ports"]]
        assert open_to_all == ([4319] if component(each) in {"gateway", "worker"} else [])


@pytest.mark.parametrize("release", ["rel", "a" * 40, "a" * 53])
def test_what_keda_asks_for_are_the_pods_of_the_deployment(release: str) -> None:
    objects = render("helm4", "gpu", release=release)
    [gateway] = workloads(objects, "gateway")
    scaler = named(objects, "ScaledObject", gateway["metadata"]["name"])
    query = scaler["spec"]["triggers"][0]["metadata"]["query"]
    [pattern] = re.findall(r'pod=~"(.*)"}', query)
    # The API server cuts what it generates names from.
    replica_set = f"{gateway['metadata']['name']}-5d4f8c7b9d"
    assert re.fullmatch(pattern, f"{replica_set}-"[:58] + "x2k9z")
    assert not re.fullmatch(pattern, f"other-{replica_set}-x2k9z")
    assert 'namespace="inference"' in query


@pytest.mark.parametrize("release", ["rel", "a" * 53])
def test_what_keda_asks_for_are_the_workers_of_the_pool(release: str) -> None:
    objects = render("helm4", "gpu", release=release)
    [worker] = workloads(objects, "worker")
    scaler = named(objects, "ScaledObject", worker["metadata"]["name"])
    for trigger in scaler["spec"]["triggers"]:
        query = trigger["metadata"]["query"]
        [pattern] = re.findall(r'pod=~"(.*)"}', query)
        assert re.fullmatch(pattern, f"{worker['metadata']['name']}-11")
        assert not re.fullmatch(pattern, f"other-{worker['metadata']['name']}-11")
        assert 'namespace="inference"' in query


def test_the_test_asks_for_a_model_that_runs() -> None:
    sets = ("workers.a.replicas=0", 'workers.a.model="/models/none"', 'workers.b.model="/models/some.gguf"')
    [pod] = of_kind(render("helm4", sets=sets), "Pod")
    assert "--model=some" in container_of(pod)["args"]


def test_images_come_from_where_the_values_say_with_their_secrets() -> None:
    digest = "sha256:" + "0" * 64
    image = {"repository": "registry.example:5000/radixgate", "digest": digest, "pullPolicy": "Always"}
    values: dict[str, Any] = {
        "imagePullSecrets": [{"name": "registry"}],
        **{key: {"image": image} for key in ("gateway", "workerDefaults", "redis", "pageStore")},
    }
    values["pageStore"]["enabled"] = True
    for _, pod in pods(render("helm4", values=json.dumps(values))):
        assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
        assert container_of(pod)["image"] == f"registry.example:5000/radixgate@{digest}"
        assert container_of(pod)["imagePullPolicy"] == "Always"


def test_variables_and_volumes_of_ones_own_join_those_of_the_chart() -> None:
    secret = {"name": "OTEL_EXPORTER_OTLP_HEADERS", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}
    own: dict[str, Any] = {
        "extraEnv": [secret],
        "extraVolumes": [{"name": "own", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "own", "mountPath": "/own"}],
    }
    objects = render("helm4", values=json.dumps({"gateway": own, "workerDefaults": own}))
    for each in workloads(objects, "gateway", "worker"):
        container = container_of(each["spec"]["template"])
        assert container["env"][-1] == secret
        assert container["volumeMounts"][-1] == own["extraVolumeMounts"][0]
        assert each["spec"]["template"]["spec"]["volumes"][-1] == own["extraVolumes"][0]
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)


def test_a_domain_of_the_cluster_is_in_every_address() -> None:
    objects = render("helm4", "cpu-demo", sets=('clusterDomain="corp.example"',))
    [worker] = workloads(objects, "worker")
    [pod] = of_kind(objects, "Pod")
    for container in (container_of(worker["spec"]["template"]), container_of(pod)):
        text = str(container["args"])
        assert ".inference.svc.corp.example:" in text
