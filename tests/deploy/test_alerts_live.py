"""Faults in the running product, as a real Prometheus notices them and a real Alertmanager is told.

The rules are those that we ship, with all waiting thirty times shorter: five minutes are ten seconds.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml

from tests.deploy.monitors import Alertmanager, running_alertmanager
from tests.deploy.observed import Observed, observed_stack
from tests.deploy.rules import rule_files, scaled
from tests.processes import wait_until
from tests.tools import REPOSITORY

pytestmark = [pytest.mark.live, pytest.mark.model, pytest.mark.timeout(400)]

FACTOR = 30
NOTICED_S = 150.0
# What a slow machine or a pool that is much too small brings about without any fault.
OF_LOAD = {"RadixgateTtftBurnsFast", "RadixgateTtftBurnsSlowly", "RadixgateQueueWait", "RadixgatePredictionError"}


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alertmanager]:
    config = yaml.safe_load((REPOSITORY / "deploy" / "prometheus" / "alertmanager.yaml").read_text())
    with running_alertmanager(tmp_path_factory.mktemp("alertmanager"), config) as running:
        yield running


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, alertmanager: Alertmanager) -> Iterator[Observed]:
    """A stack that may be broken, and its Prometheus with impatient rules."""
    folder: Path = tmp_path_factory.mktemp("watched")
    impatient = []
    for file in rule_files():
        impatient.append(folder / file.name)
        impatient[-1].write_text(yaml.safe_dump(scaled(yaml.safe_load(file.read_text()), FACTOR)))
    told = alertmanager.url.removeprefix("http://")
    with observed_stack(folder, rule_files=impatient, alertmanagers=[told]) as running:
        running.traffic.forgiving = True
        yield running


def process_of(watched: Observed, *words: str) -> psutil.Process:
    """Return the only process of the stack whose command line has all these words."""
    found = [each for each in watched.stack.family() if all(word in " ".join(each.cmdline()) for word in words)]
    assert len(found) == 1, [each.cmdline() for each in found]
    return found[0]


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """Let a process stand still: it is there, its connections are open, and it answers nothing."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def firing(watched: Observed) -> set[str]:
    return {labels["alertname"] for labels in watched.prometheus.firing()}


def delivered(alertmanager: Alertmanager) -> set[str]:
    return {alert["labels"]["alertname"] for alert in alertmanager.alerts()}


def wait_until_fire(watched: Observed, alertmanager: Alertmanager, *alerts: str) -> None:
    wanted = {f"Radixgate{alert}" for alert in alerts}
    wait_until(
        lambda: wanted <= firing(watched) & delivered(alertmanager), timeout_s=NOTICED_S, what=f"{sorted(wanted)} fire"
    )


def wait_until_silent(watched: Observed, *alerts: str) -> None:
    wanted = {f"Radixgate{alert}" for alert in alerts}
    wait_until(lambda: not wanted & firing(watched), timeout_s=NOTICED_S, what=f"{sorted(wanted)} end")


def test_nothing_fires_while_all_is_well(watched: Observed) -> None:
    """Under traffic that is answered; longer than any alert about a process waits."""
    answered = len(watched.traffic.used)
    wait_until(lambda: len(watched.traffic.used) > answered + 30, timeout_s=120, what="30 answers")
    assert firing(watched) <= OF_LOAD


def test_a_redis_that_stands_still_is_noticed_by_both_alerts_about_it_and_they_end_with_it(
    watched: Observed, alertmanager: Alertmanager
) -> None:
    with stopped(process_of(watched, "valkey-server")):
        wait_until_fire(watched, alertmanager, "StoreUnreachable", "QuotaStoreAway")
    wait_until_silent(watched, "StoreUnreachable", "QuotaStoreAway")


def test_a_worker_that_stands_still_is_noticed_while_the_gateway_goes_on(
    watched: Observed, alertmanager: Alertmanager
) -> None:
    with stopped(process_of(watched, "-m cli worker")):
        wait_until_fire(watched, alertmanager, "WorkerDown", "WorkersGone", "NoWorkerConnected", "ErrorsBurnFast")
        assert not firing(watched) & {"RadixgateGatewayDown", "RadixgateGatewaysGone"}
    wait_until_silent(watched, "WorkerDown", "WorkersGone", "NoWorkerConnected")
