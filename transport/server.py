"""TLS of a process's own servers: one certificate for all of them, which can be replaced while they run.

Connections keep what they began with; each new one gets what was accepted last.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from typing import Protocol

import grpc
import structlog

from transport.pems import PemFiles, Pems, RawPems, TlsFileError, checked, read_raw

_log = structlog.get_logger(__name__)


class TlsObserver(Protocol):
    def certificate_loaded(self, expires_at: float) -> None:
        """A server's certificate is in use from now on; it expires at a time in seconds since the epoch."""
        ...

    def certificate_refused(self, reason: str) -> None:
        """Changed files cannot be used, the last ones still are: "unreadable", "malformed", "mismatch", "expired",
        "not_yet_valid" or "unusable".
        """
        ...


class ServerTls:
    """Holds what the servers of this process present, and looks at the files again and again.

    Invariant: `_current` has been checked as a whole; what cannot serve never takes its place. Belongs to the event
    loop, except the fetcher, which gRPC calls from threads of its own and which only reads.
    """

    def __init__(
        self, files: PemFiles, reload_s: float, observer: TlsObserver, clock: Callable[[], float] = time.time
    ) -> None:
        """Raises TlsFileError if the files can't serve now."""
        self._files = files
        self._reload_s = reload_s
        self._observer = observer
        self._clock = clock
        self._raw = read_raw(files)  # of `_current`
        self._current = checked(self._raw, files, clock())
        self._context = _context(self._current, files)
        self._fault = ""  # why changed files can't be used, as last told
        observer.certificate_loaded(self._current.expires_at)

    @property
    def expires_at(self) -> float:
        """When the certificate that new connections get expires, in seconds since the epoch."""
        return self._current.expires_at

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return credentials for one gRPC server.

        With authorities, clients must present a certificate of theirs: gRPC for Python cannot ask for one and go on
        without.
        """
        given = self._current

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal given
            current = self._current
            if current is given:
                return None
            given = current
            return _configuration(current)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(given),
            fetch,  # type: ignore[arg-type]  # None is what says that nothing has changed
            require_client_authentication=given.peer_ca is not None,
        )

    def ssl_context(self) -> ssl.SSLContext:
        """Return a context for any number of other servers (HTTP/1.1) on this event loop.

        Each handshake is given a context of its own making, so that nothing of a replaced certificate or authority is
        left: a context that is loaded again keeps certificates of other kinds of keys, and all authorities.
        """
        front = _context(self._current, self._files)

        def choose(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            connection.context = self._context

        front.sni_callback = choose  # called for clients that name no host, too
        return front

    async def run(self) -> None:
        """Look at the files every `reload_s`, until cancelled."""
        while True:
            await asyncio.sleep(self._reload_s)
            await self.look()

    async def look(self) -> None:
        """Take up what the files hold, if that has changed and can serve."""
        try:
            raw = await asyncio.to_thread(read_raw, self._files)
            if raw != self._raw:
                self._take(raw)
        except TlsFileError as error:
            if str(error) != self._fault:  # told once, not every time that somebody looks
                self._fault = str(error)
                self._observer.certificate_refused(error.reason)
                _log.error("certificate not replaced, the last one stays", reason=str(error))
        else:
            self._fault = ""

    def _take(self, raw: RawPems) -> None:
        pems = checked(raw, self._files, self._clock())
        self._context = _context(pems, self._files)
        self._current = pems
        self._raw = raw
        self._observer.certificate_loaded(pems.expires_at)
        _log.info("certificate replaced", file=self._files.cert_file, expires_at=pems.expires_at)


def _context(pems: Pems, files: PemFiles) -> ssl.SSLContext:
    """Raises TlsFileError for what OpenSSL refuses, such as a key that is too short."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # A resumed session is not verified again: it would outlive the authority that let it in.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    try:
        _load_own(context, pems)
        if pems.peer_ca is not None:
            context.load_verify_locations(cadata=pems.peer_ca.decode())
            context.verify_mode = ssl.CERT_REQUIRED
    except ssl.SSLError as error:
        raise TlsFileError("unusable", f"{files.cert_file} cannot serve: {error.reason or error}") from error
    return context


def _load_own(context: ssl.SSLContext, pems: Pems) -> None:
    """Load exactly what was checked: from memory, as the files may have changed since. Python takes a path only."""
    descriptor = os.memfd_create("certificate")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(pems.chain + b"\n" + pems.key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _configuration(pems: Pems) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.chain)], root_certificates=pems.peer_ca)
