"""A fleet of simulated workers and two gateways under load, and a real Prometheus that scrapes it every second.

Also a command, for people who want to look: `python -m tests.deploy.observed_fleet --seconds 300`. It kills a worker
every minute, and starts it again.
"""

import argparse
import asyncio
import random
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fleet_client import FleetClient, Outcome, fleet_client, tokens_request
from benchmarks.fleet_processes import Fleet, FleetPlan, Member, running_fleet
from tests.deploy.monitors import Prometheus, running_prometheus
from tests.processes import wait_until

TENANTS = ("acme", "globex", "initech")
_CONVERSATIONS = 8  # of each tenant, at a time
_TURNS = 6
_SYSTEM_TOKENS = 512
_QUESTION_TOKENS = 192
_ANSWER_TOKENS = 32
_PAUSE_S = 0.6  # before the next turn
_KILLED_EVERY_S = 60.0

# Workers that are soon full, so that both tiers have work, and members that are missed soon.
SETTINGS = (
    "worker.cache.num_slots=24576",
    "worker.cache.host_slots=49152",
    "worker.simulation.step_s=0.02",
    "worker.simulation.token_s=0.0001",
    "worker.registry.ttl_s=3",
    "gateway.discovery.forget_s=3",
    "gateway.worker_link.silence_s=3",
)


@dataclass
class Conversations:
    """Tenants that talk, each from its own namespace, on a thread of their own."""

    fleet: Fleet
    outcomes: list[Outcome] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def flowing(self) -> Iterator[None]:
        thread = threading.Thread(target=lambda: asyncio.run(self._talk()), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(60)
            assert not thread.is_alive(), "conversations do not end"

    @property
    def errors(self) -> list[str]:
        return [outcome.error for outcome in self.outcomes if outcome.error]

    async def _talk(self) -> None:
        addresses = [gateway.address for gateway in self.fleet.gateways]
        keys = {tenant: self.fleet.make_tenant(tenant) for tenant in TENANTS}
        async with asyncio.TaskGroup() as tasks:
            for tenant in TENANTS:
                tasks.create_task(self._talk_of(tenant, addresses, keys[tenant]))

    async def _talk_of(self, tenant: str, addresses: Sequence[str], key: str) -> None:
        chance = random.Random(tenant)
        system = _tokens(chance, _SYSTEM_TOKENS)
        async with fleet_client(addresses, key) as client, asyncio.TaskGroup() as tasks:
            for number in range(_CONVERSATIONS):
                tasks.create_task(self._converse(client, system, random.Random(f"{tenant} {number}")))

    async def _converse(self, client: FleetClient, system: list[int], chance: random.Random) -> None:
        while not self._ended.is_set():
            known = list(system)
            for _ in range(chance.randint(1, _TURNS)):
                known += _tokens(chance, _QUESTION_TOKENS)
                outcome = await client.ask(tokens_request(known, _ANSWER_TOKENS), timeout_s=60)
                self.outcomes.append(outcome)
                known += outcome.token_ids.get(0, [])
                await asyncio.sleep(_PAUSE_S * chance.uniform(0.5, 1.5))
                if self._ended.is_set():
                    return


def _tokens(chance: random.Random, number: int) -> list[int]:
    return [chance.randrange(1000, 1_000_000) for _ in range(number)]


@dataclass(frozen=True)
class ObservedFleet:
    fleet: Fleet
    prometheus: Prometheus
    conversations: Conversations


@contextmanager
def observed_fleet(folder: Path, rule_files: Sequence[Path], num_workers: int = 4) -> Iterator[ObservedFleet]:
    """Start everything, and let tenants talk until the block ends."""
    plan = FleetPlan(num_workers, num_gateways=2, settings=SETTINGS, registered=True)
    with running_fleet(folder, plan) as fleet:
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(file) for file in rule_files],
            "scrape_configs": [
                {
                    "job_name": f"radixgate-{command}",
                    "static_configs": [{"targets": [_target(member, command) for member in members]}],
                }
                for command, members in (("gateway", fleet.gateways), ("worker", fleet.workers))
            ],
        }
        with running_prometheus(folder, config) as prometheus:
            members = len(fleet.gateways) + len(fleet.workers)
            wait_until(lambda: prometheus.targets_up() == members, timeout_s=60, what="all targets scraped")
            conversations = Conversations(fleet)
            with conversations.flowing():
                yield ObservedFleet(fleet, prometheus, conversations)


def killed_and_restarted(member: Member) -> None:
    """Let a worker die as a machine does, and come back where it was."""
    member.kill()
    member.start()
    member.wait_until_ready()


def _target(member: Member, command: str) -> str:
    # Metrics stay where they are when a member comes again.
    address = member.metrics.removeprefix("http://").removesuffix("/metrics")
    member.configure((command, "metrics_listen"), address)
    return address


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a simulated fleet under load with a Prometheus to look at.")
    parser.add_argument("--seconds", type=float, default=300.0, help="for how long (default: 300)")
    seconds = parser.parse_args().seconds
    with (
        tempfile.TemporaryDirectory(prefix="radixgate-observed-") as folder,
        observed_fleet(Path(folder), ()) as observed,
        suppress(KeyboardInterrupt),
    ):
        print(f"Prometheus: {observed.prometheus.url}", flush=True)  # noqa: T201
        ends_at, number = time.monotonic() + seconds, 0
        while (left_s := ends_at - time.monotonic()) > 0:
            time.sleep(min(left_s, _KILLED_EVERY_S))
            if left_s > _KILLED_EVERY_S:
                killed_and_restarted(observed.fleet.workers[number % len(observed.fleet.workers)])
                number += 1
        outcomes = observed.conversations.outcomes
        print(f"{len(outcomes)} answers, {len(observed.conversations.errors)} errors")  # noqa: T201


if __name__ == "__main__":
    main()
