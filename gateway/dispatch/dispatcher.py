"""Who takes a request: chooses a worker of the fleet and sends it there."""

import time

from gateway.dispatch.catalogue import ServedModel
from gateway.dispatch.fleet import Fleet
from gateway.dispatch.generation import Generation, submit_message
from gateway.dispatch.link import WorkerLink
from gateway.dispatch.stream import TokenStream
from gateway.errors import AdapterChangedError
from gateway.routing.router import Placement, Router


class Dispatcher:
    """Gives requests to workers."""

    def __init__(self, fleet: Fleet, router: Router) -> None:
        self._fleet = fleet
        self._router = router

    def submit(
        self, model: ServedModel, generation: Generation, timeout_s: float, traceparent: str = ""
    ) -> TokenStream:
        """Choose a worker and send it the request. `traceparent` "": it is not traced.

        Raises UnavailableError: AdapterChangedError where no worker has the adapter in this revision any more.
        """
        links = {link.address: link for link in self._links_for(model, generation)}
        key = generation.key()
        placement = Placement(model.name, key, generation.adapter_revision, generation.extra_key)
        choice = self._router.choose(placement, [link.candidate() for link in links.values()], time.monotonic())
        return links[choice.worker].submit(submit_message(generation, timeout_s, traceparent), key)

    def _links_for(self, model: ServedModel, generation: Generation) -> list[WorkerLink]:
        """Return the workers that could take it, at least one."""
        up = self._fleet.links_of(model)
        links = [link for link in up if link.max_sequence_tokens >= generation.max_tokens]
        if not links:
            raise self._fleet.no_worker(model.name)
        if generation.adapter:
            links = [link for link in links if _has_adapter(link, generation)]
            if not links:
                raise AdapterChangedError
        return links


def _has_adapter(link: WorkerLink, generation: Generation) -> bool:
    return link.adapters.has(generation.tenant, generation.adapter, generation.adapter_revision)
