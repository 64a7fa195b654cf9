"""One gateway process: the only module that knows all concrete classes, and the order in which they start and stop."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Self

import structlog
from redis.asyncio import Redis

from gateway.config import GatewayConfig, JwtConfig, TlsConfig
from gateway.control.room import ControlRoom
from gateway.dispatch.catalogue import Catalogue
from gateway.dispatch.fleet import Fleet
from gateway.dispatch.link import StreamLimits, WorkerLink
from gateway.dispatch.pace import Pace
from gateway.errors import UnavailableError
from gateway.http.boundary import CallerAuthenticator, HttpBoundary
from gateway.http.routes import make_routes
from gateway.http.server import HttpServer
from gateway.identity.adapters import AdapterDirectory
from gateway.identity.audit import RedisAuditLog
from gateway.identity.authenticator import AdminAuthenticator, TenantAuthenticator
from gateway.identity.by_form import ByForm
from gateway.identity.certificates import CertificateAuthenticator
from gateway.identity.changes import ChangeLog, ChangeWatch
from gateway.identity.directory import Directory, RedisDirectory
from gateway.identity.extra_keys import ConfiguredSecret, ExtraKeys, RedisSecret, SecretSource
from gateway.identity.idempotency import Idempotency
from gateway.identity.issuing import Issuer
from gateway.identity.key_ring import KeyRing, from_file, from_url
from gateway.identity.named_tenants import NamedTenants
from gateway.identity.reach import StoreReach
from gateway.identity.redis_keys import RedisKeyStore
from gateway.identity.redis_store import connect
from gateway.identity.redis_tenants import RedisTenantStore
from gateway.identity.remembering import RememberingDirectory
from gateway.identity.sessions import Sessions
from gateway.identity.stores import KeyStore, TenantStore
from gateway.identity.terms import TermsBook
from gateway.identity.tokens import TokenAuthenticator
from gateway.identity.upkeep import AGAIN_S, Upkeep
from gateway.observer import GatewayObserver, NullObserver
from gateway.prompts.threads import PromptThreads
from gateway.quota.opening import open_quotas
from gateway.quota.usage import UsageStore
from gateway.routing.router import RoundRobin
from gateway.rpc.admin import AdminRooms, AdminServicer
from gateway.rpc.admin_calls.adapters import AdapterCalls
from gateway.rpc.admin_calls.audit import AuditCalls
from gateway.rpc.admin_calls.cache import CacheCalls
from gateway.rpc.admin_calls.keys import KeyCalls
from gateway.rpc.admin_calls.prefixes import PrefixCalls
from gateway.rpc.admin_calls.tenants import TenantCalls
from gateway.rpc.admin_calls.usage import UsageCalls
from gateway.rpc.boundary import Authenticator, Boundary
from gateway.rpc.health import HealthServicer
from gateway.rpc.inference import InferenceServicer
from gateway.rpc.journal import AdminJournal
from gateway.rpc.server import ADMIN, INFERENCE, OPEN_SERVICES, GatewayServer
from gateway.serving.calls import Calls
from gateway.serving.inference import Inference
from gateway.serving.offers import Offers
from gateway.serving.preparation import Preparation
from metrics.exposition import MetricsServer
from metrics.gateway import GatewayMetrics
from transport.pems import PemFiles
from transport.server import ServerTls

_log = structlog.get_logger(__name__)


class GatewayApp:
    """A gateway in this process: `start`, serve, `stop`. Make, start and stop it inside one event loop."""

    def __init__(
        self,
        config: GatewayConfig,
        observer: GatewayObserver | None = None,
    ) -> None:
        """Raises ValueError where the configuration lacks something."""
        self._config = config
        self.port = 0  # known after `start`, as is the next one
        self._http_port = 0
        self._http: HttpServer | None = None
        observer = observer or NullObserver()
        self._threads = PromptThreads(config.server.prompt_threads)
        self._redis = connect(config.redis)
        self._reach = StoreReach(self._redis, config.redis.timeout_s, observer)
        self._changes = ChangeWatch(self._redis, self._reach)
        self._idempotency = Idempotency(self._redis, self._reach)
        self._audit = RedisAuditLog(self._redis, self._reach)
        self._journal = AdminJournal(self._audit)
        self._quotas = open_quotas(self._redis, self._reach, config.quota, observer)
        self._tasks: list[asyncio.Task[None]] = []  # what runs beside the servers, from `start` to `stop`
        self._tls = _server_tls(config.tls, observer)
        self._key_ring = _key_ring(config.jwt, observer)
        self._fleet = self._make_fleet(observer)
        self._health = HealthServicer()
        self._sessions = Sessions()
        self._secret = _secret_source(config, self._redis, self._reach)
        self._control = self._make_control()
        inference, offers = self._make_services(self._control.directory, observer)
        self._server = self._make_server(self._redis, inference, offers, observer)

    def _make_fleet(self, observer: GatewayObserver) -> Fleet:
        config = self._config
        catalogue = Catalogue(self._threads)
        server = config.server
        pace = Pace(server.coalesce_s, server.longest_coalesce_s, server.messages_per_s)
        limits = StreamLimits(pace, config.limits.max_unread_bytes)
        return Fleet(
            config.workers,
            lambda address, changed: WorkerLink(address, config.worker_link, limits, catalogue, observer, changed),
            catalogue,
            RoundRobin(),
        )

    def _make_control(self) -> ControlRoom:
        return ControlRoom(self._fleet, self._redis, self._reach, self._changes, ExtraKeys(self._secret))

    def _make_services(self, adapters: AdapterDirectory, observer: GatewayObserver) -> tuple[Inference, Offers]:
        config, quotas, control = self._config, self._quotas, self._control
        preparation = Preparation(self._fleet, adapters, control.prefixes, ExtraKeys(self._secret), config.limits)
        inference = Inference(
            self._fleet,
            preparation,
            quotas,
            self._sessions,
            control.namespaces,
            config.limits,
            config.server,
            observer,
        )
        return inference, Offers(self._fleet, adapters, quotas)

    def _make_server(
        self, redis: Redis, inference: Inference, offers: Offers, observer: GatewayObserver
    ) -> GatewayServer:
        config = self._config
        tenants, keys = RedisTenantStore(redis, self._reach), RedisKeyStore(redis, self._reach)
        directory = RememberingDirectory(RedisDirectory(redis, self._reach), config.quota.max_stale_s)
        upkeep = Upkeep(ChangeLog(redis, self._reach), directory, self._sessions)
        self._changes.when_changed(upkeep.follow, AGAIN_S)
        terms = TermsBook(config.policies)
        callers, bearers = self._tenant_authenticators(directory, terms, observer)
        authenticators: dict[str, Authenticator] = {INFERENCE: callers}
        admin = None
        if tokens := admin_tokens(config):
            authenticators[ADMIN] = AdminAuthenticator(tokens, observer)
            admin = AdminServicer(self._make_rooms(tenants, keys, terms))
        boundary = Boundary(authenticators, OPEN_SERVICES, config.limits, observer, {ADMIN: self._journal})
        self._http = self._make_http(bearers, boundary.calls, inference, offers, observer)
        servicer = InferenceServicer(inference, offers)
        tls = self._tls.grpc_credentials() if self._tls else None
        return GatewayServer(config.server, config.limits, boundary, self._health, servicer, admin, tls)

    def _make_rooms(self, tenants: TenantStore, keys: KeyStore, terms: TermsBook) -> AdminRooms:
        control, once = self._control, self._idempotency
        cache, usage = CacheCalls(tenants, control.cache_control), UsageStore(self._redis, self._reach)
        return AdminRooms(
            tenants=TenantCalls(tenants, terms, once, usage, cache),
            keys=KeyCalls(tenants, keys, Issuer(self._secret), once),
            adapters=AdapterCalls(control.adapter_control, once),
            prefixes=PrefixCalls(self._fleet, control.prefix_control, once, self._config.limits),
            cache=cache,
            usage=UsageCalls(tenants, usage),
            audit=AuditCalls(self._audit),
        )

    def _tenant_authenticators(
        self, directory: Directory, terms: TermsBook, observer: GatewayObserver
    ) -> tuple[ByForm, ByForm]:
        """Return those of gRPC and HTTP, where a browser would add its certificate to the requests of any page."""
        config, named, ring = self._config, NamedTenants(directory, terms, observer), self._key_ring
        by_name, prefix = config.tls.client_tenants, config.tls.client_tenant_prefix
        keys = TenantAuthenticator(directory, terms, observer)
        tokens = TokenAuthenticator(config.jwt, ring, named, observer) if ring else None
        certificates = CertificateAuthenticator(by_name, prefix, named, observer) if by_name or prefix else None
        return ByForm(keys, tokens, certificates), ByForm(keys, tokens)

    def _make_http(
        self,
        callers: CallerAuthenticator,
        calls: Calls,
        inference: Inference,
        offers: Offers,
        observer: GatewayObserver,
    ) -> HttpServer | None:
        config = self._config
        if config.http.listen is None:
            return None
        routes = make_routes(inference, self._fleet, offers, self._threads, config.http, config.limits)
        boundary = HttpBoundary(routes, callers, calls, lambda: self.ready, observer)
        return HttpServer(config.http, boundary, self._tls.ssl_context() if self._tls else None)

    @property
    def address(self) -> str:
        """Where the gateway listens, once started."""
        return f"{self._config.listen.rpartition(':')[0]}:{self.port}"

    @property
    def http_address(self) -> str | None:
        """Where the gateway listens for HTTP, once started; None where it does not."""
        listen = self._config.http.listen
        return f"{listen.rpartition(':')[0]}:{self._http_port}" if listen is not None else None

    @property
    def ready(self) -> bool:
        """Whether a worker is connected."""
        return self._fleet.ready

    async def start(self) -> None:
        """Listen, and begin to connect to the workers. Raises OSError if the address cannot be had.

        Neither workers nor Redis need to be there: until they are, calls get UNAVAILABLE.
        """
        self._health.set("", serving=True)
        self._health.set(INFERENCE, serving=False)
        if admin_tokens(self._config):
            self._health.set(ADMIN, serving=True)
        self.port = await self._server.start(self._config.listen)
        if self._http is not None and self._config.http.listen is not None:
            try:
                self._http_port = await self._http.start(self._config.http.listen)
            except OSError:
                await self._server.stop()
                raise
        self._fleet.start(self._workers_changed)
        runs = (self._reach.run, self._changes.run, self._control.run)
        self._quotas.start()
        self._tasks = [asyncio.create_task(run()) for run in runs]
        self._tasks += [asyncio.create_task(each.run()) for each in (self._tls, self._key_ring) if each]
        _log.info("gateway started", address=self.address, workers=list(self._config.workers))

    def _workers_changed(self) -> None:
        self._health.set(INFERENCE, serving=self._fleet.ready)
        self._control.workers_changed()

    async def stop(self) -> None:
        """Drain and stop: NOT_SERVING, no new calls, running ones get `drain_s` and then UNAVAILABLE."""
        if self._http is not None:
            self._http.drain()
        if not await self._server.drain(self._config.server.drain_s):
            self._fleet.fail_all(
                UnavailableError("the gateway shut down before the end", reason="GATEWAY_SHUTTING_DOWN")
            )
        if self._http is not None:
            await self._http.stop()
        await self._server.stop()
        await self._fleet.stop()
        await self._quotas.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, self._idempotency.close(), self._journal.close(), return_exceptions=True)
        await self._redis.aclose()
        self._threads.close()
        _log.info("gateway stopped", address=self.address)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self.stop()


def admin_tokens(config: GatewayConfig) -> dict[str, str]:
    """Return the admin tokens by the operator's name."""
    return {**({"admin": config.admin_token} if config.admin_token else {}), **config.operators}


def _secret_source(config: GatewayConfig, redis: Redis, reach: StoreReach) -> SecretSource:
    return ConfiguredSecret(config.extra_key_secret) if config.extra_key_secret else RedisSecret(redis, reach)


def _server_tls(config: TlsConfig, observer: GatewayObserver) -> ServerTls | None:
    """Raises ValueError, naming the file, for what cannot serve."""
    if config.cert_file is None or config.key_file is None:
        return None
    return ServerTls(PemFiles(config.cert_file, config.key_file, config.client_ca_file), config.reload_s, observer)


def _key_ring(config: JwtConfig, observer: GatewayObserver) -> KeyRing | None:
    """Raises ValueError for a file without keys. An identity provider may come later, like Redis and workers."""
    if config.jwks_url is not None:
        return KeyRing(from_url(config.jwks_url), config.algorithms, config.refresh_s, observer)
    if config.jwks_file is None:
        return None
    ring = KeyRing(from_file(config.jwks_file), config.algorithms, config.refresh_s, observer)
    try:
        ring.load()
    except (OSError, ValueError) as error:
        raise ValueError(f"gateway.jwt.jwks_file: {config.jwks_file}: {error}") from error
    return ring


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a gateway can be reached. None: not that way."""

    grpc: str
    http: str | None
    metrics: str | None  # URL


Announce = Callable[[Addresses], None]


async def serve(config: GatewayConfig, on_ready: Announce, stop: asyncio.Event) -> None:
    """Run a gateway with its metrics endpoint until `stop` is set. Raises OSError for an address that cannot be had."""
    observer = GatewayMetrics()
    async with AsyncExitStack() as stack:
        url = None
        if config.metrics_listen is not None:
            url = stack.enter_context(MetricsServer.start(observer.registry, config.metrics_listen)).url
        app = await stack.enter_async_context(GatewayApp(config, observer))
        on_ready(Addresses(app.address, app.http_address, url))
        await stop.wait()


def run_gateway(config: GatewayConfig, on_ready: Announce) -> None:
    """Run a gateway until SIGINT or SIGTERM. Raises OSError for an address that cannot be had."""

    async def main() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await serve(config, on_ready, stop)

    asyncio.run(main())
