"""A fleet whose workers die, as a real Prometheus sees it: what its panels show, and which alerts fire.

The rules are those that we ship, with all waiting thirty times shorter: five minutes are ten seconds.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deploy.grafana.drawing import Picture
from tests.deploy.dashboards import dashboards, panels_of, renderer
from tests.deploy.observed_fleet import ObservedFleet, killed_and_restarted, observed_fleet
from tests.deploy.rules import rule_files, scaled
from tests.e2e.fleet import restarted
from tests.processes import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(500)]

FACTOR = 30
NOTICED_S = 150.0
NOBODYS_ADDRESS = "127.0.0.1:1"
# Alerts about a fleet; what a slow machine makes late is of others.
OF_FLEETS = {
    alert["alert"]
    for group in yaml.safe_load(next(file for file in rule_files() if "fleet" in file.name).read_text())["groups"]
    for alert in group["rules"]
} - {"RadixgateHotWorker"}
ROWS = ("Where requests go", "What gateways know of caches", "When workers fail")
# Panels of these rows that nothing here fills: all is heard, who dies is back before it is missed, and there is room.
EMPTY = {"Upkeep of the index", "Moves that could not be", "Breakers", "Refused for want of room", "Coming and going"}


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedFleet]:
    folder: Path = tmp_path_factory.mktemp("fleet")
    impatient = []
    for file in rule_files():
        impatient.append(folder / file.name)
        impatient[-1].write_text(yaml.safe_dump(scaled(yaml.safe_load(file.read_text()), FACTOR)))
    with observed_fleet(folder, impatient, num_workers=3) as running:
        yield running


def firing(observed: ObservedFleet) -> set[str]:
    return {labels["alertname"] for labels in observed.prometheus.firing()}


def answered(observed: ObservedFleet, num_more: int) -> None:
    wanted = len(observed.conversations.outcomes) + num_more
    wait_until(lambda: len(observed.conversations.outcomes) >= wanted, timeout_s=120, what=f"{num_more} answers")


def total(observed: ObservedFleet, expression: str) -> float:
    return observed.prometheus.value(f"sum({expression})") or 0.0


def fleet_rows() -> set[str]:
    """Return the titles of the panels below the headlines that speak of fleets."""
    titles, headline = set(), ""
    for panel in dashboards()["radixgate-fleet"]["panels"]:
        if panel["type"] == "row":
            headline = panel["title"]
        elif headline in ROWS:
            titles.add(panel["title"])
    return titles


def test_no_alert_of_fleets_fires_while_all_is_well_and_expectations_are_right(observed: ObservedFleet) -> None:
    """Longer than any of them waits."""
    began = time.monotonic()
    answered(observed, 200)
    wait_until(lambda: time.monotonic() > began + 45, timeout_s=60, what="45 s of conversations")
    assert firing(observed) & OF_FLEETS == set()
    right = total(observed, 'radixgate_gateway_predictions_total{outcome="right"}')
    assert right >= 0.98 * total(observed, "radixgate_gateway_predictions_total")


def test_a_worker_that_dies_is_seen_in_moves_and_not_by_clients(observed: ObservedFleet, tmp_path: Path) -> None:
    since = time.time()

    def killed_until_something_moved() -> bool:
        killed_and_restarted(observed.fleet.workers[0])
        time.sleep(3)  # Prometheus looks every second
        return total(observed, 'radixgate_gateway_moves_total{outcome="continued"}') > 0

    wait_until(killed_until_something_moved, timeout_s=120, what="a request that moved")
    observed.fleet.wait_until_connected()
    answered(observed, 50)
    assert observed.conversations.errors == []
    picture = Picture(
        "radixgate-fleet", dashboards()["radixgate-fleet"], minutes=(time.time() - since + 30) / 60, scrape_interval_s=1
    )
    drawn = renderer().draw([picture], observed.prometheus.url, tmp_path)["radixgate-fleet"]
    assert [error for panel in drawn for error in panel.errors] == []
    shown = {panel.title for panel in drawn if panel.shows == "data"}
    assert len(panels_of(dashboards()["radixgate-fleet"])) == len(drawn)
    assert fleet_rows() - EMPTY <= shown


def test_workers_that_die_again_and_again_raise_an_alert(observed: ObservedFleet) -> None:
    def killed_until_noticed() -> bool:
        for worker in observed.fleet.workers:
            killed_and_restarted(worker)
            observed.fleet.wait_until_connected()
        return "RadixgateRequestsMove" in firing(observed)

    wait_until(killed_until_noticed, timeout_s=NOTICED_S, what="RadixgateRequestsMove fires")
    wait_until(lambda: "RadixgateRequestsMove" not in firing(observed), timeout_s=NOTICED_S, what="it ends")


async def test_a_registered_worker_that_nobody_gets_to_raises_an_alert(observed: ObservedFleet) -> None:
    worker = observed.fleet.workers[-1]
    worker.configure(("worker", "registry", "advertise"), NOBODYS_ADDRESS)
    await restarted(worker)
    wait_until(
        lambda: "RadixgateWorkersNotReached" in firing(observed),
        timeout_s=NOTICED_S,
        what="RadixgateWorkersNotReached fires",
    )
    assert observed.conversations.errors == []
