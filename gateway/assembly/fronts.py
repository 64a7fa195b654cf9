"""The two ways in, gRPC and HTTP, over the same pipeline and with room for the same number of calls."""

from gateway.assembly.identity import Identity
from gateway.assembly.serving import Serving
from gateway.assembly.store import SharedStore
from gateway.config import GatewayConfig
from gateway.http.boundary import HttpBoundary
from gateway.http.completions import Work
from gateway.http.routes import make_routes
from gateway.http.server import HttpServer
from gateway.identity.issuing import Issuer
from gateway.observer import GatewayObserver
from gateway.quota.usage import UsageStore
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
from gateway.rpc.server import ADMIN, INFERENCE, OPEN_SERVICES, GatewayServer
from tracing.calls import Tracer
from transport.server import ServerTls


class Fronts:
    """Both servers, and what tells of their health."""

    def __init__(
        self,
        config: GatewayConfig,
        store: SharedStore,
        identity: Identity,
        serving: Serving,
        tls: ServerTls | None,
        observer: GatewayObserver,
        tracer: Tracer,
    ) -> None:
        self.health = HealthServicer()
        authenticators: dict[str, Authenticator] = {INFERENCE: identity.callers}
        admin = None
        if identity.operators is not None:
            authenticators[ADMIN] = identity.operators
            admin = AdminServicer(_rooms(config, store, identity, serving))
        boundary = Boundary(authenticators, OPEN_SERVICES, config.limits, observer, {ADMIN: store.journal}, tracer)
        self.calls = boundary.calls
        self.grpc = GatewayServer(
            config.server,
            config.limits,
            boundary,
            self.health,
            InferenceServicer(serving.inference, serving.offers, serving.explanations),
            admin,
            tls.grpc_credentials() if tls else None,
        )
        self.http = None
        if config.http.listen is not None:
            work = Work(serving.inference, serving.fleet, serving.threads, serving.patience, serving.explanations)
            routes = make_routes(work, serving.offers, config.http, config.limits)
            http = HttpBoundary(routes, identity.bearers, boundary.calls, lambda: serving.fleet.ready, observer, tracer)
            self.http = HttpServer(config.http, http, tls.ssl_context() if tls else None)


def _rooms(config: GatewayConfig, store: SharedStore, identity: Identity, serving: Serving) -> AdminRooms:
    control, once, tenants = serving.control, store.idempotency, identity.tenants
    cache, usage = CacheCalls(tenants, control.cache_control), UsageStore(store.client, store.reach)
    return AdminRooms(
        tenants=TenantCalls(tenants, identity.terms, once, usage, cache, config.limits),
        keys=KeyCalls(tenants, identity.keys, Issuer(store.secret), once, config.limits),
        adapters=AdapterCalls(control.adapter_control, once),
        prefixes=PrefixCalls(serving.fleet, control.prefix_control, once, config.limits),
        cache=cache,
        usage=UsageCalls(tenants, usage),
        audit=AuditCalls(store.audit),
    )
