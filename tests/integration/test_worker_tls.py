"""TLS between gateways and workers: who may speak to a worker, and what a gateway takes for one."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509

from gateway.config import WorkerLinkConfig, WorkerLinkTlsConfig
from radixgate.v1 import worker_pb2, worker_pb2_grpc
from tests.fakes.authority import Authority, Issued
from tests.fakes.gateway_stack import FOUR, Stack, channel_to, gateway, until
from tests.fakes.model import FakeModel
from tests.fakes.worker_stack import config, running_worker
from worker.app import WorkerApp
from worker.config import TlsConfig, WorkerConfig
from worker.errors import WorkerStartError
from worker.rpc.tls import check_tls


class Site:
    """An authority for workers, one for gateways, and what both have issued."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers, self.gateways = Authority("workers"), Authority("gateways")
        self.gateway = self.gateways.issue("gateway")

    def worker(self, issued: Issued | None = None, name: str = "worker") -> WorkerConfig:
        """`name` is that of its files, which it takes up again when they change: each worker needs its own."""
        cert, key = (issued or self.workers.server()).write(self.folder, name)
        tls = TlsConfig(
            cert_file=cert, key_file=key, client_ca_file=self.gateways.write(self.folder, "gateways"), reload_s=0.02
        )
        return replace(config(), tls=tls)

    def link(self, own: Issued | None = None, **changes: Any) -> WorkerLinkConfig:
        cert, key = (own or self.gateway).write(self.folder, "gateway")
        tls = WorkerLinkTlsConfig(self.workers.write(self.folder, "workers"), cert, key)
        return WorkerLinkConfig(backoff_initial_s=0.02, backoff_max_s=0.2, tls=replace(tls, **changes))

    def credentials(self, own: Issued | None) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.workers.pem, own.key if own else None, own.chain if own else None)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@contextlib.asynccontextmanager
async def linked(redis_url: str, site: Site, link: WorkerLinkConfig, worker: WorkerConfig) -> AsyncIterator[Stack]:
    async with running_worker(worker) as (_, addresses):
        async with gateway(redis_url, [addresses.grpc], worker_link=link) as stack:
            yield stack


async def describe(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.StatusCode:
    """Ask a worker for its model, which needs no more than a connection; return how that ended."""
    async with channel_to(address, credentials) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        try:
            await stub.GetModel(worker_pb2.GetModelRequest(), timeout=5)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


async def test_a_gateway_and_a_worker_that_trust_each_other_serve(redis_url: str, site: Site) -> None:
    async with linked(redis_url, site, site.link(), site.worker()) as stack:
        await stack.ready()
        assert len((await stack.generate(**FOUR)).token_ids) == 4


async def test_all_workers_can_share_a_name(redis_url: str, site: Site) -> None:
    named = site.workers.issue("x", [x509.DNSName("workers.internal")])
    async with linked(redis_url, site, site.link(server_name="workers.internal"), site.worker(named)) as stack:
        await stack.ready()
        assert len((await stack.generate(**FOUR)).token_ids) == 4


async def test_only_gateways_get_a_connection(site: Site) -> None:
    async with running_worker(site.worker()) as (_, addresses):
        assert await describe(addresses.grpc, site.credentials(site.gateway)) is grpc.StatusCode.OK
        strangers = {
            "plain text": None,
            "no certificate": site.credentials(None),
            "another authority": site.credentials(Authority("gateways").issue("gateway")),
            "a worker's own authority": site.credentials(site.workers.issue("gateway")),
            "expired": site.credentials(site.gateways.issue("gateway", expires_in_s=-5.0)),
        }
        for kind, credentials in strangers.items():
            assert await describe(addresses.grpc, credentials) is not grpc.StatusCode.OK, kind


@pytest.mark.parametrize("imposter", ["another authority", "another name", "plain text"])
async def test_an_imposter_is_no_worker(redis_url: str, site: Site, imposter: str) -> None:
    worker = {
        "another authority": site.worker(Authority("workers").server(), "other"),
        "another name": site.worker(site.workers.issue("x", [x509.DNSName("elsewhere.internal")]), "misnamed"),
        "plain text": config(),
    }[imposter]
    async with running_worker(worker) as (_, addresses), running_worker(site.worker()) as (_, good):
        async with gateway(redis_url, [addresses.grpc, good.grpc], worker_link=site.link()) as stack:
            await until(lambda: stack.observer.workers[good.grpc] == 1)
            assert stack.observer.workers[addresses.grpc] == 0
            assert len((await stack.generate(**FOUR)).token_ids) == 4
            assert stack.observer.workers[addresses.grpc] == 0


async def test_a_gateway_whose_files_are_broken_keeps_trying_and_connects_when_they_are_mended(
    redis_url: str, site: Site
) -> None:
    link = site.link()
    Issued(site.gateway.chain, site.gateways.issue("x").key, 0).write(site.folder, "gateway")
    async with running_worker(site.worker()) as (_, addresses):
        async with gateway(redis_url, [addresses.grpc], worker_link=link) as stack:
            assert not stack.app.ready
            site.gateway.write(site.folder, "gateway")
            await stack.ready()


async def test_links_go_on_while_a_workers_certificate_is_replaced(redis_url: str, site: Site) -> None:
    async with linked(redis_url, site, site.link(), site.worker()) as stack:
        await stack.ready()
        site.workers.server().write(site.folder, "worker")
        assert len((await stack.generate(**FOUR)).token_ids) == 4
        assert stack.observer.workers.total() == 1


def test_a_certificate_that_cannot_serve_fails_the_start_by_name(site: Site) -> None:
    worker = site.worker(site.workers.server(expires_in_s=-5.0))
    for start in (lambda: check_tls(worker.tls), lambda: WorkerApp(worker, FakeModel())):
        with pytest.raises(WorkerStartError, match=r"worker\.tls: .*worker\.pem: the certificate expired"):
            start()


def test_halves_of_a_configuration_are_refused() -> None:
    halves: list[dict[str, Any]] = [{"cert_file": "c"}, {"key_file": "k"}, {"client_ca_file": "a"}]
    for fault in halves:
        with pytest.raises(ValueError, match=r"tls\."):
            TlsConfig(**fault)
    for fault in ({"ca_file": "a", "cert_file": "c"}, {"cert_file": "c", "key_file": "k"}, {"server_name": "s"}):
        with pytest.raises(ValueError, match=r"worker_link\.tls\."):
            WorkerLinkTlsConfig(**fault)
