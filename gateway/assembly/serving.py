"""What a request goes through behind either front: limits, adapters and prefixes, workers."""

from collections.abc import Callable

from gateway.assembly.identity import Identity
from gateway.assembly.store import SharedStore
from gateway.config import GatewayConfig
from gateway.control.room import ControlRoom
from gateway.dispatch import explanation
from gateway.dispatch.arrivals import Arrivals, Patience
from gateway.dispatch.catalogue import Catalogue
from gateway.dispatch.discovery import Discovery
from gateway.dispatch.dispatcher import Dispatcher, StreamLimits
from gateway.dispatch.fleet import Fleet
from gateway.dispatch.health import WorkerHealth
from gateway.dispatch.link import WorkerLink
from gateway.dispatch.pace import Pace
from gateway.dispatch.placing import Placing
from gateway.dispatch.registrations import Registrations
from gateway.dispatch.worker_view import FleetPages, WorkerView
from gateway.identity.extra_keys import ExtraKeys
from gateway.observer import GatewayObserver
from gateway.prompts.threads import PromptThreads
from gateway.quota.opening import open_quotas
from gateway.quota.usage_lines import NoUsageLog
from gateway.quota.usage_log import UsageLog
from gateway.routing.opening import open_router
from gateway.serving.inference import Inference, Listeners
from gateway.serving.offers import Offers
from gateway.serving.preparation import Preparation


class Serving:
    """The pipeline, and everything that it calls."""

    def __init__(
        self, config: GatewayConfig, store: SharedStore, identity: Identity, observer: GatewayObserver
    ) -> None:
        self.threads = PromptThreads(config.server.prompt_threads)
        self.arrivals = Arrivals()
        self.patience = Patience(self.arrivals, config.failover.wait_for_worker_s, observer)
        self.explanations = explanation.if_asked if config.routing.explain else explanation.never
        self.pages = FleetPages(config.routing.max_index_pages, observer.index_pages_forgotten)
        self.fleet = _fleet(config, self.threads, self.arrivals, self.pages, observer)
        self.dispatcher = _dispatcher(config, self.fleet, self.arrivals, self.pages, observer)
        self.discovery = _discovery(config, store, self.fleet, observer)
        extra_keys = ExtraKeys(store.secret)
        self.control = ControlRoom(self.fleet, store.client, store.reach, store.changes, extra_keys)
        self.quotas = open_quotas(store.client, store.reach, config.quota, observer, identity.terms_now)
        adapters, limits = self.control.directory, config.limits
        preparation = Preparation(self.fleet, adapters, self.control.prefixes, extra_keys, limits, self.patience)
        self.usage_log = None if config.usage_log is None else UsageLog(config.usage_log, observer)
        self.inference = Inference(
            self.dispatcher,
            preparation,
            self.quotas,
            identity.sessions,
            self.control.namespaces,
            limits,
            config.server,
            Listeners(observer, self.usage_log or NoUsageLog()),
        )
        self.offers = Offers(self.fleet, adapters, self.quotas)


def _dispatcher(
    config: GatewayConfig, fleet: Fleet, arrivals: Arrivals, pages: FleetPages, observer: GatewayObserver
) -> Dispatcher:
    server, routing = config.server, config.routing
    pace = Pace(server.coalesce_s, server.longest_coalesce_s, server.messages_per_s)
    router = open_router(routing.policy, pages.index, observer)
    placing = Placing(fleet, router, arrivals, observer, routing.max_expected_wait_s)
    return Dispatcher(placing, config.failover, StreamLimits(pace, config.limits.max_unread_bytes), observer)


def _fleet(
    config: GatewayConfig, threads: PromptThreads, arrivals: Arrivals, pages: FleetPages, observer: GatewayObserver
) -> Fleet:
    catalogue = Catalogue(threads)

    def link_to(address: str, changed: Callable[[], None]) -> WorkerLink:
        view = WorkerView(address, pages, observer)
        health = WorkerHealth(address, config.worker_link, observer, arrivals.notify)
        return WorkerLink(address, view, health, config.worker_link, catalogue, observer, changed)

    discovery = config.discovery
    if discovery.source == "static":
        return Fleet(config.workers, link_to, catalogue)
    return Fleet(discovery.extra_workers, link_to, catalogue, looks_again_s=discovery.poll_s)


def _discovery(config: GatewayConfig, store: SharedStore, fleet: Fleet, observer: GatewayObserver) -> Discovery | None:
    if config.discovery.source == "static":
        return None
    return Discovery(fleet, Registrations(store.client, store.reach), config.discovery, observer)
