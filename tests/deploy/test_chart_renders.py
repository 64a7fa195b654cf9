"""What tools for Kubernetes say of the chart: both helms, schemas of objects, checkov, promtool, kubectl."""

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from tests.deploy.chart import (
    CHART,
    HELMS,
    HOW_TO_GET,
    NAMESPACE,
    PROFILES,
    helm_command,
    name_of,
    of_kind,
    render,
    render_text,
)
from tests.tools import REPOSITORY, require_tool

# The oldest version that Chart.yaml allows, and the newest that there are schemas of.
OLDEST, NEWEST = "1.30", kubernetes_validate.latest_version()
CRDS = REPOSITORY.parent / "shared" / "data" / "crds"
CRD_FILES = {
    "Certificate": "certificate_v1.json",
    "PodMonitor": "podmonitor_v1.json",
    "PrometheusRule": "prometheusrule_v1.json",
    "ScaledObject": "scaledobject_v1alpha1.json",
    "ServiceMonitor": "servicemonitor_v1.json",
}
WITHOUT_SCHEMA = {"GRPCRoute", "HTTPRoute"}

each_helm = pytest.mark.parametrize("helm", HELMS)
each_profile = pytest.mark.parametrize("profile", PROFILES)


def test_the_profiles_are_those_that_are_promised() -> None:
    assert PROFILES == ("cpu-demo", "external-redis", "gpu", "multi-model", "tls")


@each_helm
@pytest.mark.parametrize("profile", [None, *PROFILES])
def test_helm_finds_nothing_to_warn_of(helm: str, profile: str | None) -> None:
    files = [] if profile is None else ["--values", str(CHART / "ci" / f"{profile}-values.yaml")]
    done = helm_command(helm, "lint", "--strict", str(CHART), *files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


@each_profile
def test_both_helms_render_the_same(profile: str) -> None:
    def comparable(helm: str) -> list[dict[str, Any]]:
        objects = copy.deepcopy(render(helm, profile))
        for secret in of_kind(objects, "Secret"):
            secret["data"] = sorted(secret["data"])  # values are random
        return sorted(objects, key=name_of)

    assert comparable("helm3") == comparable("helm4")


@each_profile
@pytest.mark.parametrize(("helm", "version"), [("helm3", OLDEST), ("helm4", NEWEST)])
def test_objects_are_valid_and_have_no_field_that_kubernetes_does_not_know(
    helm: str, profile: str, version: str
) -> None:
    checked = 0
    for each in render(helm, profile):
        if each["kind"] in WITHOUT_SCHEMA or each["kind"] in CRD_FILES:
            continue
        kubernetes_validate.validate(each, version, strict=True)
        checked += 1
    assert checked > 10


def _strict(schema: Any) -> Any:
    """Return a schema that refuses fields it does not name: an API server would drop them without a word."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: _strict(value) for key, value in schema.items()}
    if str(schema.get("pattern")).startswith("^(?i)"):
        result["pattern"] = "(?i)^" + schema["pattern"].removeprefix("^(?i)")  # as Python wants it
    named = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if named and "additionalProperties" not in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result["additionalProperties"] = False
    return result


@each_profile
def test_objects_of_operators_are_valid(profile: str) -> None:
    if not CRDS.is_dir():
        pytest.skip("the schemas of cert-manager, KEDA and the Prometheus operator are not here")
    for each in of_kind(render("helm4", profile), *CRD_FILES):
        schema = _strict(json.loads((CRDS / CRD_FILES[each["kind"]]).read_text()))
        schema["properties"]["metadata"] = {"type": "object"}
        jsonschema.validate(each, schema)


def test_profiles_make_an_object_of_every_kind_that_the_chart_knows() -> None:
    made = {each["kind"] for profile in PROFILES for each in render("helm4", profile)}
    written = {
        line.removeprefix("kind: ").strip()
        for path in (CHART / "templates").rglob("*.yaml")
        for line in path.read_text().splitlines()
        if line.startswith("kind: ")
    }
    assert written == made


def test_checkov_finds_nothing_but_what_is_meant_so(tmp_path: Path) -> None:
    for profile in PROFILES:
        (tmp_path / f"{profile}.yaml").write_text(render_text("helm4", profile))
    command = [require_tool("checkov", HOW_TO_GET), "--directory", str(tmp_path), "--framework", "kubernetes"]
    options = ["--compact", "--quiet", "--output", "json", "--skip-download", "--soft-fail"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["summary"]["passed"] > 1000
    assert report["summary"]["parsing_errors"] == 0
    meant = yaml.safe_load((Path(__file__).parent / "chart_skips.yaml").read_text())
    found = {each["check_id"] for each in report["results"]["failed_checks"]}
    details = [
        f"{each['check_id']} {each['check_name']}: {each['file_path']} {each['resource']}"
        for each in report["results"]["failed_checks"]
        if each["check_id"] not in meant
    ]
    assert not details, "\n".join(details)
    assert found == set(meant), "a reason that nothing needs"


def test_checkovs_reasons_cover_only_what_they_speak_of() -> None:
    """Two of the skips are of the test's pod, and one of a profile: by id they would cover others as well."""
    for profile in PROFILES:
        for each in render("helm4", profile):
            if each["kind"] not in {"Deployment", "StatefulSet"}:
                continue
            [container] = each["spec"]["template"]["spec"]["containers"]
            assert {"livenessProbe", "readinessProbe", "startupProbe"} <= container.keys()
            added = container["securityContext"]["capabilities"].get("add", [])
            assert added == (["IPC_LOCK"] if name_of(each) == "StatefulSet/rel-radixgate-worker-llama" else [])


def test_promtool_takes_the_rules_as_the_chart_renders_them(tmp_path: Path) -> None:
    files = list((CHART / "files" / "rules").glob("*.yaml"))
    if not files:
        pytest.skip("there are no rule files")
    [rule] = of_kind(render("helm4", "gpu"), "PrometheusRule")
    written = sum(len(yaml.safe_load(path.read_text())["groups"]) for path in files)
    assert len(rule["spec"]["groups"]) == written
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": rule["spec"]["groups"]}))
    promtool = require_tool("promtool", HOW_TO_GET)
    done = subprocess.run([promtool, "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    alerts = [each for group in rule["spec"]["groups"] for each in group["rules"] if "alert" in each]
    assert alerts
    for alert in alerts:
        anchor = f"https://runbooks.example/radixgate#{alert['alert'].lower()}"
        assert alert["annotations"]["runbook_url"] == anchor
    assert rule["metadata"]["labels"]["release"] == "prometheus"


def test_a_setting_of_the_rules_is_taken_and_no_other_rule_changes() -> None:
    record = "radixgate:ttft_objective:ratio"
    sets = [f"monitoring.rules.settings={json.dumps({record: 'vector(0.9)'})}"]
    [before] = of_kind(render("helm4", "gpu"), "PrometheusRule")
    [after] = of_kind(render("helm4", "gpu", sets=tuple(sets)), "PrometheusRule")
    rules = [[each for group in of["spec"]["groups"] for each in group["rules"]] for of in (before, after)]
    changed = [(one, other) for one, other in zip(*rules, strict=True) if one != other]
    [(one, other)] = changed
    assert other == {**one, "record": record, "expr": "vector(0.9)"}


def test_each_dashboard_is_a_config_map_that_grafana_finds_and_an_api_server_takes() -> None:
    files = {path.name: path.read_text() for path in (CHART / "files" / "dashboards").glob("*.json")}
    if not files:
        pytest.skip("there are no dashboards")
    maps = [each for each in of_kind(render("helm4", "gpu"), "ConfigMap") if "grafana_dashboard" in str(each)]
    found = {}
    for each in maps:
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert each["metadata"]["annotations"] == {"grafana_folder": "RadixGate"}
        [(name, text)] = each["data"].items()
        assert len(json.dumps(each)) < 1 << 20
        found[name] = json.loads(text)
    assert found == {name: json.loads(text) for name, text in files.items()}


@each_profile
def test_kubectl_reads_every_object(profile: str) -> None:
    """Offline, kubectl still decodes: this is what it does of `kubectl label --local`."""
    kubectl = require_tool("kubectl", HOW_TO_GET)
    text = render_text("helm4", profile)
    command = [kubectl, "label", "--local", "--filename", "-", "checked=yes", "--output", "name"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(render("helm4", profile))


def test_the_notes_say_what_to_do_next_and_show_no_secret() -> None:
    done = helm_command(
        "helm4", "install", "rel", str(CHART), "--namespace", NAMESPACE, "--dry-run=client",
        "--values", str(CHART / "ci" / "multi-model-values.yaml"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    for line in (
        "radixgate tenant create acme",
        "helm -n inference test rel",
        "pool       large: 2 x /models/qwen3-4b",
    ):
        assert line in notes
    assert "redis://" not in notes


@each_helm
def test_a_package_of_the_chart_holds_all_that_a_render_needs(helm: str, tmp_path: Path) -> None:
    done = helm_command(helm, "package", str(CHART), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    [archive] = tmp_path.glob("*.tgz")
    packed = render(helm, "gpu", chart=archive)
    assert [name_of(each) for each in packed] == [name_of(each) for each in render(helm, "gpu")]
