"""A worker's entry in the registry, kept by what real workers keep it with, about whatever worker a test has."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from radixgate.v1 import worker_pb2
from tests.fakes.gateway_stack import until
from worker.config import RegistryConfig
from worker.registry.registrar import Registrar


class Outcomes:
    """Remembers what a registrar tells."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def registered(self, outcome: str) -> None:
        self.told.append(outcome)

    def unregistered(self) -> None:
        self.told.append("gone")


class Entry:
    """One incarnation of a worker, as far as the registry goes. `told` may be changed; `registrar.refresh` says so."""

    def __init__(self, url: str, worker_id: str, address: str, *, ttl_s: float = 10.0, model: str = "tiny") -> None:
        self.told = worker_pb2.WorkerRegistration(
            worker_id=worker_id, address=address, incarnation=secrets.token_hex(4), model=model
        )
        self.outcomes = Outcomes()
        self.registrar = Registrar(RegistryConfig(url=url, ttl_s=ttl_s), lambda: self.told, self.outcomes)

    @property
    def is_registered(self) -> bool:
        return self.outcomes.told[-1:] == ["ok"]

    async def renewed(self) -> None:
        """Have the entry written once more, and wait for what comes of it."""
        await until(lambda: bool(self.outcomes.told))
        before = len(self.outcomes.told)
        self.registrar.refresh()
        await until(lambda: len(self.outcomes.told) > before)


@asynccontextmanager
async def registered(
    url: str, worker_id: str, address: str, *, ttl_s: float = 10.0, model: str = "tiny"
) -> AsyncIterator[Entry]:
    entry = Entry(url, worker_id, address, ttl_s=ttl_s, model=model)
    entry.registrar.start()
    try:
        yield entry
    finally:
        await entry.registrar.leave()
