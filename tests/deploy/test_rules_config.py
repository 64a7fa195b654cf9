"""The configurations that we ship for Prometheus and Alertmanager: as their own programs and the product see them."""

import subprocess
from pathlib import Path
from typing import Any

import yaml

from cli.config import Config
from tests.deploy.monitors import HOW_TO_GET
from tests.deploy.observed import JOBS
from tests.deploy.rules import alerts, rule_files
from tests.tools import REPOSITORY, require_tool

FOLDER = REPOSITORY / "deploy" / "prometheus"


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def run(program: str, *arguments: str) -> str:
    command = [require_tool(program, HOW_TO_GET), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_the_configuration_and_finds_all_rules_with_it() -> None:
    output = run("promtool", "check", "config", str(FOLDER / "prometheus.yaml"))
    assert f"{len(rule_files())} rule files found" in output


def test_amtool_accepts_the_example_of_alertmanager() -> None:
    run("amtool", "check-config", str(FOLDER / "alertmanager.yaml"))


def test_prometheus_looks_where_make_serve_shows_its_metrics() -> None:
    jobs = read(FOLDER / "prometheus.yaml")["scrape_configs"]
    scraped = {job["job_name"]: job["file_sd_configs"][0]["files"] for job in jobs}
    found = [read(FOLDER / file)[0]["targets"] for job in JOBS for file in scraped[job]]
    assert found == [[Config().gateway.metrics_listen], [Config().worker.metrics_listen]]


def test_alertmanager_routes_every_severity_and_holds_back_only_alerts_that_there_are() -> None:
    config = read(FOLDER / "alertmanager.yaml")
    routed = {route["matchers"][0].removeprefix("severity = ") for route in config["route"]["routes"]}
    assert routed == {alert.settings["labels"]["severity"] for alert in alerts()}
    for rule in config["inhibit_rules"]:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            for name in matcher.split()[-1].strip('"').split("|"):
                assert any(alert.name.startswith(name.removesuffix(".*")) for alert in alerts()), name
