"""Renders of the chart: each profile with each helm once per test process, and how to find one's way in them."""

import functools
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.tools import REPOSITORY, require_tool

CHART = REPOSITORY / "deploy" / "helm" / "radixgate"
HELMS = ("helm3", "helm4")
PROFILES = tuple(sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml")))
RELEASE = "rel"
NAMESPACE = "inference"
HOW_TO_GET = "make tools"
# What the test pod and workloads share: where a kind keeps the spec of its pods.
WORKLOADS = ("Deployment", "StatefulSet")
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"

Manifest = dict[str, Any]


class RefusedError(Exception):
    """Helm did not render; the message is what it said."""


def helm_command(helm: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([require_tool(helm, HOW_TO_GET), *arguments], capture_output=True, text=True, check=False)


@functools.cache
def render_text(
    helm: str,
    profile: str | None = None,
    *,
    release: str = RELEASE,
    namespace: str = NAMESPACE,
    sets: Sequence[str] = (),
    values: str = "",
    chart: Path = CHART,
) -> str:
    """Return what `helm template` prints. `sets` are KEY=JSON. Raises RefusedError."""
    files = [] if profile is None else ["--values", str(CHART / "ci" / f"{profile}-values.yaml")]
    options = [part for each in sets for part in ("--set-json", each)]
    command = [require_tool(helm, HOW_TO_GET), "template", release, str(chart), "--namespace", namespace]
    if values:
        options += ["--values", "-"]
    done = subprocess.run([*command, *files, *options], input=values, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RefusedError(done.stderr)
    return done.stdout


def render(helm: str, profile: str | None = None, **options: Any) -> list[Manifest]:
    """Return the objects of a render; the arguments are those of `render_text`."""
    return list(_parsed(render_text(helm, profile, **options)))


@functools.lru_cache(maxsize=64)
def _parsed(text: str) -> tuple[Manifest, ...]:
    return tuple(each for each in yaml.load_all(text, yaml.CSafeLoader) if each is not None)


def of_kind(objects: Sequence[Manifest], *kinds: str) -> list[Manifest]:
    return [each for each in objects if each["kind"] in kinds]


def named(objects: Sequence[Manifest], kind: str, name: str) -> Manifest:
    [found] = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def name_of(manifest: Manifest) -> str:
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


def component(manifest: Manifest) -> str:
    return str(manifest["metadata"]["labels"][COMPONENT])


def pods(objects: Sequence[Manifest]) -> Iterator[tuple[Manifest, Manifest]]:
    """Yield each object that makes pods, with the metadata and spec of one."""
    for each in objects:
        if each["kind"] in WORKLOADS:
            yield each, each["spec"]["template"]
        elif each["kind"] == "Pod":
            yield each, each


def workloads(objects: Sequence[Manifest], *components: str) -> list[Manifest]:
    found = [each for each in objects if each["kind"] in WORKLOADS]
    return [each for each in found if not components or component(each) in components]


def container_of(pod: Manifest) -> Manifest:
    """Return a pod's only container."""
    [container] = pod["spec"]["containers"]
    assert not pod["spec"].get("initContainers")
    return dict(container)


def config_of(objects: Sequence[Manifest], workload: Manifest) -> dict[str, Any]:
    """Return the TOML that a gateway or worker reads, parsed."""
    return tomllib.loads(config_text(objects, workload))


def config_text(objects: Sequence[Manifest], workload: Manifest) -> str:
    [volume] = [each for each in workload["spec"]["template"]["spec"]["volumes"] if each["name"] == "config"]
    return str(named(objects, "ConfigMap", volume["configMap"]["name"])["data"]["radixgate.toml"])


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a selector of labels matches; an empty one matches all."""
    for rule in selector.get("matchExpressions", []):
        assert rule["operator"] == "In"
        if labels.get(rule["key"]) not in rule["values"]:
            return False
    wanted: Mapping[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= labels.items()


def matches_service(service: Manifest, pod: Manifest) -> bool:
    """Whether a Service leads to a pod."""
    return matches({"matchLabels": service["spec"]["selector"]}, pod["metadata"]["labels"])


_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


def bytes_of(quantity: str | int) -> int:
    """Return a quantity of Kubernetes, in bytes."""
    text = str(quantity)
    number = text.rstrip("kMGTi")
    return int(float(number) * _SUFFIXES[text.removeprefix(number)])


def merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with everything that `own` says in its place."""
    result = dict(base)
    for key, value in own.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(value, Mapping) and isinstance(below, Mapping) else value
    return result


@functools.cache
def values_of(profile: str | None) -> dict[str, Any]:
    """Return the values that a profile results in."""
    values: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    if profile is not None:
        values = merged(values, yaml.safe_load((CHART / "ci" / f"{profile}-values.yaml").read_text()))
    return values


def pools_of(profile: str | None) -> dict[str, dict[str, Any]]:
    """Return the pools that a profile results in, by name, complete."""
    values = values_of(profile)
    return {name: merged(values["workerDefaults"], own) for name, own in (values["workers"] or {"default": {}}).items()}
