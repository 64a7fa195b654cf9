"""A certificate is replaced while servers run, and only by one that can serve. Real handshakes over `ssl`."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509

from tests.fakes.authority import DAY_S, Authority, Issued
from transport.pems import PemFiles, TlsFileError
from transport.server import ServerTls


class Told:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.loaded: list[float] = []
        self.refused: list[str] = []

    def certificate_loaded(self, expires_at: float) -> None:
        self.loaded.append(expires_at)

    def certificate_refused(self, reason: str) -> None:
        self.refused.append(reason)


class Server:
    """Accepts connections with a context, on this loop."""

    def __init__(self, folder: Path, client_ca: Authority | None = None, issued: Issued | None = None) -> None:
        self.authority = Authority()
        self.folder = folder
        self.told = Told()
        self.issued = issued or self.authority.server()
        cert, key = self.issued.write(folder)
        self.files = PemFiles(cert, key, client_ca.write(folder) if client_ca else None)
        self.tls = ServerTls(self.files, 60.0, self.told)
        self.port = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Server"]:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"hello\n")
            await reader.read()
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=self.tls.ssl_context())
        async with server:
            self.port = server.sockets[0].getsockname()[1]
            yield self

    def client(self, own: Issued | None = None, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authority.pem.decode())
        if version is not None:
            context.minimum_version = context.maximum_version = version
        if own is not None:
            context.load_cert_chain(*own.write(self.folder, "client"))
        return context

    def remove_files(self) -> None:
        Path(self.files.cert_file).unlink()
        Path(self.files.key_file).unlink()

    async def serial(self, context: ssl.SSLContext | None = None) -> int:
        """Connect, be greeted, and return the number of the certificate that the server showed."""
        connected = asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context or self.client(), server_hostname="localhost"
        )
        reader, writer = await asyncio.wait_for(connected, 10)
        try:
            if await asyncio.wait_for(reader.readline(), 10) != b"hello\n":
                raise ConnectionResetError  # with TLS 1.3 a client learns late that it was refused
            shown = writer.get_extra_info("ssl_object")
            assert shown.selected_alpn_protocol() in {None, "http/1.1"}
            return x509.load_der_x509_certificate(shown.getpeercert(binary_form=True)).serial_number
        finally:
            writer.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(tmp_path).running() as running:
        yield running


async def test_new_connections_get_the_new_certificate_and_old_ones_go_on(server: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=server.client())
    fresh = server.authority.server()
    fresh.write(server.folder)
    await server.tls.look()
    assert await server.serial() == fresh.serial
    writer.write(b"still here")
    assert await reader.readline() == b"hello\n"
    writer.close()
    assert len(server.told.loaded) == 2


async def test_files_that_did_not_change_are_no_news(server: Server) -> None:
    for _ in range(3):
        await server.tls.look()
    assert (len(server.told.loaded), server.told.refused) == (1, [])


async def test_a_half_written_pair_keeps_the_old_one_and_is_told_once(server: Server) -> None:
    before = await server.serial()
    fresh = server.authority.server()
    half = Issued(fresh.chain, server.issued.key, fresh.serial)
    half.write(server.folder)
    for _ in range(3):
        await server.tls.look()
    assert await server.serial() == before
    assert server.told.refused == ["mismatch"]
    fresh.write(server.folder)
    await server.tls.look()
    assert await server.serial() == fresh.serial


async def test_each_kind_of_broken_file_keeps_the_old_one(server: Server) -> None:
    before = await server.serial()
    server.authority.server(expires_in_s=-5.0).write(server.folder)
    await server.tls.look()
    Issued(b"-----BEGIN CERT", b"", 0).write(server.folder)
    await server.tls.look()
    server.remove_files()
    await server.tls.look()
    assert server.told.refused == ["expired", "malformed", "unreadable"]
    assert await server.serial() == before


async def test_a_certificate_from_the_future_is_taken_up_when_its_time_has_come(tmp_path: Path) -> None:
    authority, told, now = Authority(), Told(), [time.time()]
    cert, key = authority.server().write(tmp_path)
    tls = ServerTls(PemFiles(cert, key), 60.0, told, clock=lambda: now[0])
    authority.server(starts_in_s=2 * DAY_S, expires_in_s=3 * DAY_S).write(tmp_path)
    await tls.look()
    assert told.refused == ["not_yet_valid"]
    now[0] += 2.5 * DAY_S
    await tls.look()
    assert (told.refused, len(told.loaded)) == (["not_yet_valid"], 2)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_another_kind_of_key_leaves_nothing_of_the_first(tmp_path: Path, version: ssl.TLSVersion) -> None:
    authority = Authority()
    server = Server(tmp_path, issued=authority.server(rsa_bits=2048))
    server.authority = authority
    async with server.running():
        prefers_rsa = server.client(version=version)
        if version is ssl.TLSVersion.TLSv1_2:
            prefers_rsa.set_ciphers("ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES128-GCM-SHA256")
        await server.serial(prefers_rsa)
        fresh = authority.server()
        fresh.write(tmp_path)
        await server.tls.look()
        assert await server.serial(prefers_rsa) == fresh.serial


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_needs_a_certificate_of_an_authority_that_is_trusted_now(
    tmp_path: Path, version: ssl.TLSVersion
) -> None:
    old, new = Authority("old"), Authority("new")
    async with Server(tmp_path, client_ca=old).running() as server:
        known, stranger = server.client(old.issue("a"), version), server.client(new.issue("b"), version)
        assert await server.serial(known)
        for context in (stranger, server.client(version=version)):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await server.serial(context)
        new.write(tmp_path)
        await server.tls.look()
        assert await server.serial(stranger)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await server.serial(known)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_resumed_session_does_not_outlive_the_authority_that_let_it_in(
    tmp_path: Path, version: ssl.TLSVersion
) -> None:
    old, new = Authority("old"), Authority("new")
    async with Server(tmp_path, client_ca=old).running() as server:
        known = server.client(old.issue("a"), version)

        def greeted(session: ssl.SSLSession | None = None) -> ssl.SSLSession | None:
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain:
                with known.wrap_socket(plain, server_hostname="localhost", session=session) as secured:
                    if secured.recv(6) != b"hello\n":
                        raise ConnectionResetError
                    return secured.session

        session = await asyncio.to_thread(greeted)
        await asyncio.to_thread(greeted, session)
        new.write(tmp_path)
        await server.tls.look()
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(greeted, session)


def test_versions_that_are_broken_are_not_spoken(tmp_path: Path) -> None:
    assert Server(tmp_path).tls.ssl_context().minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_pair_that_does_not_belong_together_fails_the_start_by_name(tmp_path: Path) -> None:
    authority, told = Authority(), Told()
    cert, key = authority.server().write(tmp_path)
    Path(key).write_bytes(authority.server().key)
    with pytest.raises(TlsFileError, match=key):
        ServerTls(PemFiles(cert, key), 60.0, told)
    assert told.loaded == []


def test_a_key_that_is_too_short_fails_the_start_by_name(tmp_path: Path) -> None:
    cert, key = Authority().server(rsa_bits=1024).write(tmp_path)
    with pytest.raises(TlsFileError, match=cert) as caught:
        ServerTls(PemFiles(cert, key), 60.0, Told())
    assert caught.value.reason == "unusable"
