"""Values of the chart: what is refused and in which words, secrets, checksums, names, upgrades, several releases."""

import base64
import json
import re
from typing import Any

import pytest
import yaml

from tests.deploy.chart import (
    CHART,
    HELMS,
    INSTANCE,
    PROFILES,
    Manifest,
    RefusedError,
    component,
    config_of,
    config_text,
    container_of,
    matches,
    merged,
    name_of,
    of_kind,
    pods,
    render,
    render_text,
    workloads,
)

each_helm = pytest.mark.parametrize("helm", HELMS)
each_profile = pytest.mark.parametrize("profile", PROFILES)


# Values as KEY=JSON, and what the message must name.
REFUSED = {
    "a typo": (["gateway.replicass=2"], ["gateway", "replicass"]),
    "a typo at the top": (["gatway={}"], ["gatway"]),
    "a typo in a pool": (["workers.a.memory.hostpool=1"], ["workers", "hostpool"]),
    "a typo in the defaults of pools": (["workerDefaults.gpus=1"], ["workerDefaults", "gpus"]),
    "a number as text": (['gateway.replicas="two"'], ["gateway", "replicas"]),
    "no gateway": (["gateway.replicas=0"], ["gateway", "replicas"]),
    "two GPUs": (["workers.a.gpu.count=2"], ["workers", "gpu", "count"]),
    "a name of a pool": (["workers.A_b={}"], ["A_b"]),
    "a long name of a pool": ([f"workers.{'a' * 21}={{}}"], ["a" * 21]),
    "no quantity": (['workers.a.memory.hostPool="lots"'], ["hostPool"]),
    "no Redis": (["redis.enabled=false"], ["redis", "secretName"]),
    "two Redis": (['redis.external.secretName="x"'], ["redis", "secretName"]),
    "two page stores": (["pageStore.enabled=true", 'pageStore.external.secretName="x"'], ["pageStore", "secretName"]),
    "TLS without a certificate": (["tls.clients.enabled=true"], ["tls", "secretName"]),
    "TLS of workers without": (["tls.workers.enabled=true"], ["tls", "workerSecretName"]),
    "an issuer without a name": (
        ["tls.clients.enabled=true", "tls.clients.certManager.enabled=true"],
        ["issuerRef", "name"],
    ),
    "a section of a gateway for workers": (["workers.a.config.gateway={}"], ["workers", "gateway"]),
    "a secret as a variable": (
        ['gateway.extraEnv=[{"name": "RADIXGATE_ADMIN_TOKEN", "value": "x"}]'],
        ["gateway", "extraEnv"],
    ),
    "a label of the chart": (['commonLabels={"app.kubernetes.io/name": "x"}'], ["app.kubernetes.io/name"]),
    "too little memory": (
        ['workers.a.memory.hostPool="8Gi"', 'workers.a.resources.limits={"memory": "8Gi"}'],
        ["workers.a.resources.limits.memory is 8Gi", "memory.* needs 12096Mi together", "raise the limit"],
    ),
    "storage without a host pool": (
        ['workers.a.storage.kind="file"'],
        ["workers.a.storage.kind", "memory.hostPool is 0"],
    ),
    "pages without a store": (
        ['workers.a.storage.kind="redis"', 'workers.a.memory.hostPool="1Gi"'],
        ["workers.a.storage.kind", "enable pageStore"],
    ),
    "a registry that gives workers the URL of gateways": (
        ["redis.enabled=false", 'redis.external.secretName="x"'],
        ["registry.existingSecret is empty", "{radixgate}:worker*", "registry.enabled false"],
    ),
    "workers that are scaled and that no gateway would find": (
        ["workers.a.autoscaling.enabled=true", "registry.enabled=false"],
        ["workers.a.autoscaling.enabled", "registry.enabled is false"],
    ),
    "fewer workers at most than at least": (
        ["workers.a.autoscaling.enabled=true", "workers.a.autoscaling.minReplicas=9"],
        ["workers.a.autoscaling.maxReplicas is 4", "minReplicas, 9"],
    ),
    "a drain beside the value": (
        ["workers.a.config.worker.drain_s=5"],
        ["workers.a.config sets worker.drain_s", "drainSeconds"],
    ),
    "an address that is the chart's": (
        ['gateway.config.gateway.listen="0.0.0.0:1"'],
        ["gateway.config sets gateway.listen", "bindHost"],
    ),
    "a secret in a ConfigMap": (
        ['gateway.config.gateway.operators={"alice": "a-token-of-alice"}'],
        ["gateway.config sets gateway.operators", "ConfigMap"],
    ),
    "a pool beside its memory": (
        ["workers.a.config.worker.cache.host_slots=5"],
        ["workers.a.config sets worker.cache.host_slots", "memory.hostPool"],
    ),
    "both monitors": (
        ["monitoring.podMonitor.enabled=true", "monitoring.serviceMonitor.enabled=true"],
        ["podMonitor", "serviceMonitor", "counted twice"],
    ),
    "a setting of the rules that is none": (
        ["monitoring.rules.enabled=true", 'monitoring.rules.settings={"radixgate:nothing": "vector(1)"}'],
        ["radixgate:nothing is no setting"],
    ),
    "an address in IPv6 without brackets": (['bindHost="::"'], ["bindHost"]),
    "a collector without a port": (['tracing.endpoint="http://collector"'], ["tracing", "endpoint"]),
    "a default that is taken away": (["gateway.drainSeconds=null"], ["gateway", "drainSeconds"]),
    "a default of pools that is taken away": (["workerDefaults.memory.shm=null"], ["workerDefaults", "shm"]),
    "whose peers are taken away": (["networkPolicy.monitoring=null"], ["networkPolicy", "monitoring"]),
    "a label that is none": (['commonLabels={"team": "a b"}'], ["commonLabels", "team"]),
    "a runbook with a quote": (['monitoring.rules.runbookBase="https://x/\\"y"'], ["runbookBase"]),
    "fewer gateways at most than at least": (
        ["gateway.autoscaling.enabled=true", "gateway.autoscaling.minReplicas=9"],
        ["gateway.autoscaling.maxReplicas is 8", "minReplicas, 9"],
    ),
    "one port for two": (["gateway.service.grpcPort=8000"], ["grpcPort", "httpPort", "8000"]),
    "one key for two secrets": (['secrets.adminTokenKey="x"', 'secrets.extraKeySecretKey="x"'], ["adminTokenKey"]),
    "a volume that is too small for Redis": (['redis.maxMemory="3Gi"'], ["redis.persistence.size is 4Gi", "3Gi"]),
    "a Redis without a limit": (["redis.maxMemory=0"], ["redis.maxMemory is 0"]),
    "a request beyond the limit": (
        ['workers.a.resources.requests.memory="80Gi"'],
        ["workers.a.resources.requests.memory is 80Gi", "limit"],
    ),
    "no room for KV": (["workers.a.memory.devicePool=0"], ["workers.a.memory.devicePool is 0"]),
    "a list with nothing in it": (
        ["gateway.config.gateway.http.cors_origins=[null]"],
        ["null in it"],
    ),
    "client certificates and a test without one": (
        [
            "tls.clients.enabled=true",
            'tls.clients.secretName="a"',
            'tls.clients.clientCaSecretName="b"',
        ],
        ["test.clientCertSecretName"],
    ),
}


@each_helm
@pytest.mark.parametrize("case", REFUSED)
def test_values_that_cannot_work_are_refused_by_name(helm: str, case: str) -> None:
    sets, words = REFUSED[case]
    with pytest.raises(RefusedError) as refused:
        render_text(helm, sets=tuple(sets))
    for word in words:
        assert word in str(refused.value)


def test_the_schema_is_strict_wherever_values_are_the_charts_own() -> None:
    """Whatever has named properties refuses others, except objects that are Kubernetes'."""
    passed_on = {("definitions", "amounts"), ("definitions", "envVars", "items"), ("workerDefaults", "allOf")}
    open_ones = []

    def walk(schema: Any, path: tuple[str, ...]) -> None:
        if not isinstance(schema, dict):
            return
        inside = not {"if", "then", "else", "not"} & set(path)
        if inside and schema.get("properties") and schema.get("additionalProperties") is not False:
            open_ones.append(path)
        for key, value in schema.items():
            for each in value if isinstance(value, list) else [value]:
                walk(each, (*path, key) if key != "properties" else path)

    walk(json.loads((CHART / "values.schema.json").read_text()), ())
    assert set(open_ones) == passed_on


def test_the_schema_knows_every_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def resolved(of: dict[str, Any]) -> dict[str, Any]:
        if "$ref" in of:
            beside = {key: value for key, value in of.items() if key != "$ref"}
            return merged(resolved(schema["definitions"][of["$ref"].rpartition("/")[2]]), beside)
        if of.keys() <= {"allOf", "description"}:  # an object that is partial elsewhere, and what is required here
            partial, whole = of["allOf"]
            return merged(resolved(partial), whole)
        return of

    def compare(values: Any, of: dict[str, Any], path: str) -> None:
        of = resolved(of)
        if of.get("additionalProperties") is False:
            known = set(of["properties"]) - ({"global"} if not path else set())
            assert set(values) == known, path
            if not path.endswith(passed_on):
                # null in a file of values takes a default away: what templates count on must be there.
                assert set(of.get("required", [])) == known, path
            for key, value in values.items():
                compare(value, of["properties"][key], f"{path}.{key}")

    passed_on = (".resources", ".config", ".issuerRef")

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for passed_through in (values["gateway"], values["workerDefaults"]):
        passed_through["config"] = {key: {} for key in ("gateway", "worker", "log")}
    del values["gateway"]["config"]["worker"], values["workerDefaults"]["config"]["gateway"]
    for resources in (values["gateway"]["resources"], values["workerDefaults"]["resources"]):
        resources.setdefault("limits", {})
    for issuer in (values["tls"]["clients"]["certManager"], values["tls"]["workers"]["certManager"]):
        issuer["issuerRef"] = {"name": "", "kind": "", "group": ""}
    compare(values, schema, "")


def test_the_readme_lists_every_value_with_its_default_and_meaning() -> None:
    listed = re.findall(r"^\| ([\w.]+) \| `(.*)` \| (.+) \|$", (CHART / "README.md").read_text(), re.MULTILINE)
    written = documented_values()
    assert [name for name, _, _ in listed] == [name for name, _, _ in written]
    assert listed == written


def documented_values() -> list[tuple[str, str, str]]:
    """Return each value of values.yaml that has a comment: name, default as JSON, what the comment says."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    found: list[tuple[str, str, str]] = []
    path: list[str] = []
    comment = None
    for line in (CHART / "values.yaml").read_text().splitlines():
        if match := re.match(r"^ *# -- (.*)$", line):
            comment = match[1]
        elif (match := re.match(r"^( *)(\w+):", line)) and len(match[1]) % 2 == 0:
            path = [*path[: len(match[1]) // 2], match[2]]
            if comment is not None:
                value = values
                for name in path:
                    value = value[name]
                found.append((".".join(path), json.dumps(value), comment.replace("|", "\\|")))
                comment = None
    return found


# -------------------------------------------------------------------------------------------------------------- secrets


@each_profile
def test_secrets_are_in_secrets_alone_and_reach_processes_as_files(profile: str) -> None:
    objects = render("helm4", profile)
    secret = [
        base64.b64decode(value).decode() for each in of_kind(objects, "Secret") for value in each["data"].values()
    ]
    assert bool(secret) == (profile != "external-redis")
    rest = json.dumps([each for each in objects if each["kind"] != "Secret"])
    for value in secret:
        assert len(value) >= 48
        assert value not in rest
        assert base64.b64encode(value.encode()).decode() not in rest
    assert "redis://" not in rest
    for _, pod in pods(objects):
        for variable in container_of(pod).get("env", []):
            assert "secretKeyRef" not in str(variable)
            if "RADIXGATE" in variable["name"]:
                assert variable["name"].endswith("_FILE")
        for volume in pod["spec"]["volumes"]:
            if "secret" in volume:
                assert volume["secret"]["defaultMode"] == 0o440


def test_secrets_that_the_chart_makes_outlive_a_release_and_are_random() -> None:
    def made(release: str) -> dict[str, str]:
        secrets = of_kind(render("helm4", "multi-model", release=release), "Secret")
        assert {each["metadata"]["annotations"]["helm.sh/resource-policy"] for each in secrets} == {"keep"}
        return {f"{name_of(each)} {key}": value for each in secrets for key, value in each["data"].items()}

    one, other = made("one"), made("two")
    assert len(one) == 8
    values = [*one.values(), *other.values()]
    assert len(set(values)) == len(values)


def test_secrets_that_are_there_are_used_and_none_are_made() -> None:
    objects = render("helm4", "external-redis")
    assert not of_kind(objects, "Secret")
    named = {
        volume["secret"]["secretName"]
        for _, pod in pods(objects)
        for volume in pod["spec"]["volumes"]
        if "secret" in volume
    }
    assert named == {
        "radixgate-credentials", "radixgate-redis-url", "radixgate-registry-url", "radixgate-pages-url",
    }  # fmt: skip


def test_workers_never_see_the_secrets_of_gateways() -> None:
    for profile in PROFILES:
        objects = render("helm4", profile)
        [gateway] = workloads(objects, "gateway")
        secrets_of_gateways = {
            volume["secret"]["secretName"]
            for volume in gateway["spec"]["template"]["spec"]["volumes"]
            if "secret" in volume
        }
        for worker in workloads(objects, "worker"):
            volumes = worker["spec"]["template"]["spec"]["volumes"]
            assert not secrets_of_gateways & {each["secret"]["secretName"] for each in volumes if "secret" in each}


# -------------------------------------------------------------------------------------------------- checksums, upgrades


def checksums(objects: list[Manifest]) -> dict[str, str]:
    return {
        name_of(each): each["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        for each in workloads(objects)
    }


@pytest.mark.parametrize(
    ("value", "changed"),
    [
        ("gateway.config.gateway.limits.max_logprobs=5", {"gateway"}),
        ("gateway.drainSeconds=31", {"gateway"}),
        ("workers.large.config.worker.engine.max_running=7", {"worker-large"}),
        ("workers.large.replicas=4", set()),
        ("workers.large.drainSeconds=20", {"worker-large"}),
        ('workerDefaults.memory.adapters="300Mi"', {"worker-large", "worker-small"}),
        ('redis.maxMemory="600Mi"', {"redis"}),
        ("gateway.service.httpPort=80", set()),
        ('commonLabels.team="a"', set()),
        ("gateway.replicas=4", set()),
    ],
)
def test_a_pod_is_replaced_when_its_configuration_changes_and_only_then(value: str, changed: set[str]) -> None:
    before = checksums(render("helm4", "multi-model"))
    after = checksums(render("helm4", "multi-model", sets=(value,)))
    assert before.keys() == after.keys()
    assert {name.partition("radixgate-")[2] for name in before if before[name] != after[name]} == changed


def test_rendering_twice_changes_nothing_but_random_secrets() -> None:
    one, other = (render(helm, "multi-model") for helm in HELMS)
    assert checksums(one) == checksums(other)


@pytest.mark.parametrize(
    "value",
    [
        'commonLabels={"team": "a"}',
        "workers.small.replicas=9",
        'workers.small.podLabels={"a": "b"}',
        'workers.small.model="/models/other"',
        'gateway.podLabels={"a": "b"}',
        "networkPolicy.enabled=false",
        'workerDefaults.image.tag="0.2.0"',
    ],
)
def test_what_an_upgrade_cannot_change_stays(value: str) -> None:
    """Of Deployments and StatefulSets the API server refuses another selector, service name or claim."""

    def fixed(objects: list[Manifest]) -> dict[str, Any]:
        keys = ("selector", "serviceName", "podManagementPolicy", "volumeClaimTemplates")
        return {name_of(each): [each["spec"].get(key) for key in keys] for each in workloads(objects)}

    before, after = render("helm4", "multi-model"), render("helm4", "multi-model", sets=(value,))
    assert before != after
    assert fixed(before) == fixed(after)


def test_a_pools_image_is_that_of_what_it_computes_on() -> None:
    def image(profile: str, *sets: str) -> str:
        [worker, *_] = workloads(render("helm4", profile, sets=sets), "worker")
        return str(container_of(worker["spec"]["template"])["image"])

    assert image("cpu-demo") == "radixgate/worker:0.1.0-cpu"
    assert image("gpu") == "radixgate/worker:0.1.0-cuda"
    assert image("gpu", 'workerDefaults.image.tag="x"') == "radixgate/worker:x"
    digest = "sha256:" + "0" * 64
    assert image("gpu", f'workerDefaults.image.digest="{digest}"') == f"radixgate/worker@{digest}"


# ------------------------------------------------------------------------------------------------------ names, releases

LONG = "a" * 40 + "-team-inference"  # 55 characters; Helm allows 53
RELEASES = ["r", "radixgate", "2024", "rel.v2", LONG[:53], LONG[:52] + "x", "my-radixgate-prod"]


@pytest.mark.parametrize("release", RELEASES)
def test_names_are_valid_however_long_the_release_and_the_pool_are(release: str) -> None:
    objects = render("helm4", "gpu", release=release, sets=(f"workers.{'p' * 20}.replicas=1000",))
    for each in objects:
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", each["metadata"]["name"]), name_of(each)
    for each in of_kind(objects, "StatefulSet"):
        assert len(each["metadata"]["name"]) + len("-0123456789") <= 63, "the label controller-revision-hash"
    names = {(each["kind"], each["metadata"]["name"]) for each in objects}
    assert len(names) == len(objects)


def test_long_names_that_begin_alike_stay_two() -> None:
    one, other = (render("helm4", "gpu", release=release) for release in RELEASES[4:6])
    assert not {name_of(each) for each in one} & {name_of(each) for each in other}


def test_two_releases_in_one_namespace_do_not_meet() -> None:
    one, other = render("helm4", "multi-model", release="one"), render("helm4", "multi-model", release="two")
    assert not {name_of(each) for each in one} & {name_of(each) for each in other}
    foreign = [pod["metadata"]["labels"] for _, pod in pods(other)]
    for each in one:
        for selector in selectors(each.get("spec", {})):
            assert not any(matches(selector, labels) for labels in foreign), name_of(each)
    [gateway] = workloads(one, "gateway")
    assert not re.search(r"\btwo\b", config_text(one, gateway))


def selectors(value: Any) -> list[dict[str, Any]]:
    """Return every selector of pods of this namespace that is somewhere in an object."""
    found: list[dict[str, Any]] = []
    if isinstance(value, list):
        return [each for one in value for each in selectors(one)]
    if not isinstance(value, dict) or "namespaceSelector" in value:
        return found
    for key, inner in value.items():
        if key in {"selector", "podSelector", "labelSelector"} and isinstance(inner, dict):
            found.append(inner if "matchLabels" in inner else {"matchLabels": inner})
        else:
            found += selectors(inner)
    return found


def test_everything_of_a_release_is_marked_as_its_own() -> None:
    for each in render("helm4", "tls", release="one"):
        assert each["metadata"]["labels"][INSTANCE] == "one"


def test_without_any_value_there_is_a_pool_that_works_without_a_gpu() -> None:
    objects = render("helm4")
    [worker] = workloads(objects, "worker")
    assert component(worker) == "worker"
    assert config_of(objects, worker)["worker"]["model"] == {
        "model": "smollm2-135m-instruct", "device": "cpu", "threads": 2,
    }  # fmt: skip
