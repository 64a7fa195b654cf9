"""The whole product under load, and a real Prometheus that scrapes it every second with the rules that we ship.

Also a command, for people who want to look: `python -m tests.deploy.observed --seconds 600`.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cli.admin_client import admin_client
from cli.admin_client.adapter_calls import AdapterName
from radixgate.v1 import admin_pb2
from tests.deploy.monitors import Prometheus, running_prometheus
from tests.deploy.traffic import ADAPTER, HOUSE_RULES, LIMITED, Traffic
from tests.e2e.stack import Stack, running_stack
from tests.processes import wait_until
from tests.tools import REPOSITORY

RULES = REPOSITORY / "deploy" / "helm" / "radixgate" / "files" / "rules"
JOBS = ("radixgate-gateway", "radixgate-worker")  # in the order of a stack's metrics

# Pools that what the traffic asks for does not fit into: all tiers have work.
SMALL_TIERS = (
    "worker.model.dtype=fp32",
    "worker.cache.num_slots=768",
    "worker.cache.host_slots=1280",
    "worker.cache.low_watermark=0.3",
    "worker.cache.high_watermark=0.5",
    "worker.cache.storage.page_size=16",
    f"gateway.policies.tenants.{LIMITED}.requests_per_minute=3",
    "gateway.policies.tenants.demo-b.max_concurrent_requests=1",
    "gateway.policies.tenants.demo-b.max_queued_requests=8",
)


@dataclass(frozen=True)
class Observed:
    """A stack, its traffic, and the Prometheus that looks on."""

    stack: Stack
    prometheus: Prometheus
    traffic: Traffic

    def settle(self) -> None:
        """Pause the traffic, and wait until Prometheus has seen all that it left behind."""
        self.traffic.pause()
        paused_at = time.time()
        scraped = "min(timestamp(up))"  # of the last scrape of each target

        def seen() -> bool:
            last = self.prometheus.value(scraped)
            # The counters of a request may move a moment after its client has its answer, and the first scrape that has
            # a new series shows it at 0.
            return last is not None and last > paused_at + 2.5

        wait_until(seen, timeout_s=60, what="two more scrapes of every target")


def prometheus_config(stack: Stack, rule_files: Sequence[Path], alertmanagers: Sequence[str] = ()) -> dict[str, Any]:
    """Return a configuration as in deploy/prometheus/prometheus.yaml, with everything every second."""
    targets = [url.removeprefix("http://").removesuffix("/metrics") for url in stack.metrics]
    config: dict[str, Any] = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(file) for file in rule_files],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [target]}]}
            for job, target in zip(JOBS, targets, strict=True)
        ],
    }
    if alertmanagers:
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": list(alertmanagers)}]}]}
    return config


def shipped_rules() -> list[Path]:
    return sorted(RULES.glob("*.yaml"))


@contextmanager
def observed_stack(
    folder: Path, *, rule_files: Sequence[Path] | None = None, alertmanagers: Sequence[str] = ()
) -> Iterator[Observed]:
    """Start everything, put tenants, adapter and public prefix there, and send requests until the block ends."""
    store = (folder / "pages").as_uri()
    settings = (*SMALL_TIERS, f"worker.cache.storage.url={store}")
    with running_stack(folder, [argument for value in settings for argument in ("--set", value)]) as bare:
        stack = furnished(bare, json.loads((folder / "ready.json").read_text())["admin_token"])
        rules = shipped_rules() if rule_files is None else rule_files
        with running_prometheus(folder, prometheus_config(stack, rules, alertmanagers)) as prometheus:
            # The first scrapes find counters that are there and have not moved: what rises later is all counted.
            wait_until(lambda: prometheus.targets_up() == len(JOBS), timeout_s=60, what="both targets scraped")
            traffic = Traffic(stack)
            with traffic.flowing():
                yield Observed(stack, prometheus, traffic)


def furnished(stack: Stack, admin_token: str) -> Stack:
    """Register what the traffic uses; return the stack with the keys of all tenants."""
    adapter = str(REPOSITORY / "examples" / "adapters" / ADAPTER)
    rules = admin_pb2.CreatePublicPrefixRequest(prefix_id="house-rules")
    rules.chat.messages.add(role="system", content=HOUSE_RULES)
    with admin_client(stack.grpc, admin_token) as admin:
        admin.ensure_tenant(LIMITED)
        keys = {**stack.keys, LIMITED: admin.create_key(LIMITED)[1]}
        admin.adapters.register(AdapterName(ADAPTER), adapter)
        admin.prefixes.create(rules)
    return replace(stack, keys=keys)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the product under load with a Prometheus to look at.")
    parser.add_argument("--seconds", type=float, default=600.0, help="for how long (default: 600)")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="radixgate-observed-") as folder:
        with observed_stack(Path(folder)) as observed:
            print(f"Prometheus: {observed.prometheus.url}", flush=True)  # noqa: T201
            for url in observed.stack.metrics:
                print(f"metrics:    {url}", flush=True)  # noqa: T201
            with suppress(KeyboardInterrupt):
                time.sleep(seconds)
            prompt, cached = observed.traffic.totals()
            answered, refused = len(observed.traffic.used), observed.traffic.refused
            print(f"{answered} answers, {refused} refused, {cached} of {prompt} prompt tokens cached")  # noqa: T201


if __name__ == "__main__":
    main()
