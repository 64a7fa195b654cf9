"""TLS in front of a whole gateway: real handshakes, replaced certificates, and tenants by what certificates say."""

import asyncio
import contextlib
import http.client
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gateway.app import GatewayApp
from gateway.config import JwtConfig, TlsConfig
from radixgate.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc
from tests.fakes.authority import FOR_CLIENTS, FOR_SERVERS, Authority, Issued
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import (
    FOUR,
    MANY,
    Metadata,
    Refusal,
    Stack,
    bearer,
    channel_to,
    config_for,
    gateway,
    health,
    until,
)

UNAUTHENTICATED, UNAVAILABLE = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE
PREFIX = "spiffe://example.org/tenant/"


@dataclass
class Deployment:
    """A gateway with TLS, and who issued what."""

    stack: Stack
    folder: Path
    servers: Authority
    clients: Authority

    def credentials(self, own: Issued | None = None) -> grpc.ChannelCredentials:
        return credentials(self.servers, own)

    async def call(self, own: Issued | None, metadata: Metadata = ()) -> Refusal | None:
        """Generate four tokens over a connection of its own; return how that failed, if it did."""
        async with channel_to(self.stack.app.address, self.credentials(own)) as channel:
            request = inference_pb2.GenerateRequest(**FOUR)
            try:
                call: Any = inference_pb2_grpc.InferenceServiceStub(channel).Generate(
                    request, metadata=metadata, timeout=10
                )
                async for _ in call:
                    pass
            except grpc.aio.AioRpcError as error:
                return Refusal.of(error)
        return None

    def tenant_of_last_call(self) -> str:
        """Return whose call the gateway has last seen the end of."""
        return self.stack.observer.finished[-1][2]

    async def shown(self, protocol: str = "h2") -> int:
        """Return the number of the certificate that a new connection gets, to gRPC's port or HTTP's."""
        address = self.stack.app.address if protocol == "h2" else self.stack.app.http_address or ""
        host, _, port = address.rpartition(":")
        context = ssl.create_default_context(cadata=self.servers.pem.decode())
        context.set_alpn_protocols([protocol])
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return x509.load_der_x509_certificate(der).serial_number

    async def http_status(self, own: Issued | None = None, key: str = "") -> int:
        """Ask for the models over HTTP. Raises OSError where there is no connection."""
        context = ssl.create_default_context(cadata=self.servers.pem.decode())
        if own is not None:
            context.load_cert_chain(*own.write(self.folder, "http-client"))
        host, _, port = (self.stack.app.http_address or "").rpartition(":")

        def ask() -> int:
            connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=10)
            with contextlib.closing(connection):
                connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"} if key else {})
                return connection.getresponse().status

        return await asyncio.to_thread(ask)

    async def until_shown(self, issued: Issued) -> None:
        async with asyncio.timeout(10):
            while await self.shown() != issued.serial:
                pass


def credentials(servers: Authority, own: Issued | None = None) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(servers.pem, own.key if own else None, own.chain if own else None)


@pytest.fixture
async def tls(redis_url: str, worker: FakeWorker, tmp_path: Path) -> AsyncIterator[Deployment]:
    servers = Authority()
    cert, key = servers.server().write(tmp_path)
    config = TlsConfig(cert, key, reload_s=0.02)
    async with gateway(redis_url, [worker], credentials=credentials(servers), tls=config) as stack:
        yield Deployment(stack, tmp_path, servers, Authority("clients"))


@pytest.fixture
async def mutual(redis_url: str, worker: FakeWorker, tmp_path: Path) -> AsyncIterator[Deployment]:
    """Client certificates are required; two names are listed, and a prefix stands for the rest."""
    servers, clients = Authority("servers"), Authority("clients")
    cert, key = servers.server().write(tmp_path)
    config = TlsConfig(
        cert,
        key,
        client_ca_file=clients.write(tmp_path),
        client_tenants={"Acme Ltd": "acme", "globex.example": "globex"},
        client_tenant_prefix=PREFIX,
        reload_s=0.02,
    )
    operator = credentials(servers, clients.issue("operator"))
    async with gateway(redis_url, [worker], tenants=["acme", "globex"], credentials=operator, tls=config) as stack:
        yield Deployment(stack, tmp_path, servers, clients)


# ------------------------------------------------------------------------------------------------------------- servers


async def test_every_service_speaks_tls_and_nothing_speaks_plain_text(tls: Deployment) -> None:
    completion = await tls.stack.generate(**FOUR)
    assert len(completion.token_ids) == 4
    assert await health(tls.stack, "") == 1
    make: Any = reflection_pb2_grpc.ServerReflectionStub
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    answers = [answer async for answer in make(tls.stack.channel).ServerReflectionInfo(iter([request]))]
    assert len(answers[0].list_services_response.service) == 4
    async with channel_to(tls.stack.app.address) as plain:
        stub = inference_pb2_grpc.InferenceServiceStub(plain)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListModels(inference_pb2.ListModelsRequest(), metadata=bearer(tls.stack.keys["acme"]), timeout=5)
        assert caught.value.code() in {UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}


async def test_a_client_that_trusts_another_authority_does_not_speak_to_us(tls: Deployment) -> None:
    async with channel_to(tls.stack.app.address, credentials(Authority("other"))) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await inference_pb2_grpc.InferenceServiceStub(channel).ListModels(
                inference_pb2.ListModelsRequest(), timeout=5
            )
        assert caught.value.code() is UNAVAILABLE


async def test_a_replaced_certificate_is_shown_without_a_restart_and_streams_go_on(
    tls: Deployment, worker: FakeWorker
) -> None:
    worker.hold()
    call = tls.stack.call(**MANY)
    running = asyncio.create_task(collect(call))
    await until(lambda: len(worker.submits) == 1)
    before = await tls.shown()
    fresh = tls.servers.server()
    fresh.write(tls.folder)
    assert before != fresh.serial
    await tls.until_shown(fresh)
    worker.go()
    assert await running == 400
    assert await tls.shown("http/1.1") == fresh.serial


async def collect(call: Any) -> int:
    return sum([len(message.token_ids) async for message in call])


async def test_a_broken_replacement_is_not_taken(tls: Deployment) -> None:
    before = await tls.shown()
    fresh = tls.servers.server()
    Issued(fresh.chain, tls.servers.server().key, fresh.serial).write(tls.folder)
    await until(lambda: bool(tls.stack.observer.refused_certificates))
    assert await tls.shown() == before
    assert set(tls.stack.observer.refused_certificates) == {"mismatch"}
    fresh.write(tls.folder)
    await tls.until_shown(fresh)


@pytest.mark.parametrize("fault", ["no key", "no authority", "expired"])
async def test_files_that_cannot_serve_fail_the_start_by_name(redis_url: str, tmp_path: Path, fault: str) -> None:
    authority = Authority()
    cert, key = authority.server(expires_in_s=-1.0 if fault == "expired" else 3600.0).write(tmp_path)
    missing = str(tmp_path / "missing.pem")
    config = {
        "no key": TlsConfig(cert, missing),
        "no authority": TlsConfig(cert, key, client_ca_file=missing),
        "expired": TlsConfig(cert, key),
    }[fault]
    with pytest.raises(ValueError, match=cert if fault == "expired" else missing):
        GatewayApp(config_for(redis_url, [], tls=config))


async def test_keys_of_tokens_that_are_not_there_fail_the_start_by_name(redis_url: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "keys.json")
    with pytest.raises(ValueError, match=missing):
        GatewayApp(config_for(redis_url, [], jwt=JwtConfig(jwks_file=missing, issuer="i", audience="a")))


async def test_http_speaks_tls_with_the_same_certificate(tls: Deployment) -> None:
    assert await tls.shown("http/1.1") == await tls.shown("h2")
    assert await tls.http_status(key=tls.stack.keys["acme"]) == 200
    assert await tls.http_status(key="rg_x") == 401


# ------------------------------------------------------------------------------------------------- clients' identities


def certificates(clients: Authority) -> dict[str, tuple[Issued, str]]:
    return {
        "common name": (clients.issue("Acme Ltd"), "acme"),
        "DNS name": (clients.issue("a client", [x509.DNSName("globex.example")]), "globex"),
        "URI": (clients.issue([], [x509.UniformResourceIdentifier(PREFIX + "globex")]), "globex"),
        "for clients": (clients.issue("Acme Ltd", purpose=FOR_CLIENTS), "acme"),
        "an RSA key": (clients.issue("Acme Ltd", rsa_bits=2048), "acme"),
    }


async def test_a_call_without_authorization_is_the_certificates_tenants(mutual: Deployment) -> None:
    for kind, (own, tenant_id) in certificates(mutual.clients).items():
        assert await mutual.call(own) is None, kind
        assert mutual.tenant_of_last_call() == tenant_id, kind


async def test_certificates_of_nobody_get_one_answer(mutual: Deployment) -> None:
    issue = mutual.clients.issue
    bad = [
        issue("nobody"),
        issue("acme"),
        issue([]),
        issue(["Acme Ltd", "globex.example"]),
        issue("Acme Ltd", [x509.DNSName("globex.example")]),
        issue("x", [x509.UniformResourceIdentifier(PREFIX + "initech")]),
        issue("x", [x509.RFC822Name(PREFIX + "acme@example.org")]),
    ]
    refusals = [await mutual.call(own) for own in bad]
    assert all(refusal == refusals[0] for refusal in refusals)
    assert refusals[0] is not None
    assert (refusals[0].code, refusals[0].reason) == (UNAUTHENTICATED, "CREDENTIAL_REFUSED")
    assert mutual.stack.observer.auth_failures == [
        *["certificate_unknown"] * 4,
        "certificate_ambiguous",
        "certificate_tenant",
        "certificate_unknown",
    ]


async def test_an_authorization_decides_and_the_certificate_is_transport(mutual: Deployment) -> None:
    acme = mutual.clients.issue("Acme Ltd")
    assert await mutual.call(acme, bearer(mutual.stack.keys["globex"])) is None
    assert mutual.tenant_of_last_call() == "globex"
    for wrong in (bearer("rg_x"), (("authorization", ""),), (("authorization", "Basic eA=="),)):
        refusal = await mutual.call(acme, wrong)
        assert refusal is not None, wrong
        assert refusal.code is UNAUTHENTICATED, wrong


async def test_without_a_certificate_of_the_authority_there_is_no_connection(mutual: Deployment) -> None:
    key = bearer(mutual.stack.keys["acme"])
    strangers = {
        "none": None,
        "another authority": Authority("clients").issue("Acme Ltd"),
        "the servers' authority": mutual.servers.issue("Acme Ltd"),
        "expired": mutual.clients.issue("Acme Ltd", expires_in_s=-5.0),
        "for servers only": mutual.clients.issue("Acme Ltd", purpose=FOR_SERVERS),
    }
    for kind, own in strangers.items():
        refusal = await mutual.call(own, key)
        assert refusal is not None, kind
        assert refusal.code is UNAVAILABLE, kind


async def test_no_certificate_makes_an_operator(mutual: Deployment) -> None:
    async with channel_to(mutual.stack.app.address, mutual.credentials(mutual.clients.issue("Acme Ltd"))) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await admin_pb2_grpc.AdminServiceStub(channel).ListTenants(admin_pb2.ListTenantsRequest(), timeout=5)
        assert caught.value.code() is UNAUTHENTICATED


async def test_a_claim_of_identity_is_refused_of_certificates_too(mutual: Deployment) -> None:
    refusal = await mutual.call(mutual.clients.issue("Acme Ltd"), (("x-tenant-id", "globex"),))
    assert refusal is not None
    assert refusal.reason == "IDENTITY_CLAIMED"


async def test_an_authority_that_is_taken_out_lets_nobody_in_any_more(mutual: Deployment) -> None:
    before, after = mutual.clients.issue("Acme Ltd"), Authority("new clients")
    assert await mutual.call(before) is None
    taken_up = len(mutual.stack.observer.loaded_certificates) + 1
    after.write(mutual.folder)
    await until(lambda: len(mutual.stack.observer.loaded_certificates) == taken_up)
    assert await mutual.call(after.issue("Acme Ltd")) is None
    refusal = await mutual.call(before)
    assert refusal is not None
    assert refusal.code is UNAVAILABLE


async def test_where_no_names_are_listed_a_certificate_is_transport_only(
    redis_url: str, worker: FakeWorker, tmp_path: Path
) -> None:
    servers, clients = Authority("servers"), Authority("clients")
    cert, key = servers.server().write(tmp_path)
    config = TlsConfig(cert, key, client_ca_file=clients.write(tmp_path))
    own = clients.issue("acme")
    async with gateway(redis_url, [worker], credentials=credentials(servers, own), tls=config) as stack:
        deployment = Deployment(stack, tmp_path, servers, clients)
        assert await deployment.call(own, bearer(stack.keys["acme"])) is None
        refusal = await deployment.call(own)
        assert refusal is not None
        assert refusal.code is UNAUTHENTICATED
        assert stack.observer.auth_failures == ["missing"]


async def test_http_needs_a_certificate_too_and_takes_it_for_no_credential(mutual: Deployment) -> None:
    acme = mutual.clients.issue("Acme Ltd")
    assert await mutual.http_status(acme, mutual.stack.keys["globex"]) == 200
    assert await mutual.http_status(acme) == 401
    for stranger in (None, Authority("clients").issue("Acme Ltd")):
        with pytest.raises(OSError, match=r"(?i)certificate|unknown.ca|reset|closed"):
            await mutual.http_status(stranger, mutual.stack.keys["acme"])
