"""All workers of this gateway: which models there are, and who takes the next request."""

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.dispatch.catalogue import Catalogue, ServedModel
from gateway.dispatch.link import WorkerLink
from gateway.dispatch.stream import TokenStream
from gateway.errors import (
    AdapterChangedError,
    GatewayError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
    Violation,
)
from gateway.routing.router import Placement, Router
from hicache.keys import Namespace, PrefixKey
from hicache.keys import Segment as Named
from radixgate.v1 import inference_pb2, worker_pb2

MakeLink = Callable[[str, Callable[[], None]], WorkerLink]  # (address, on_change) -> link


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of prompt tokens in one cache namespace."""

    extra_key: bytes
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Generation:
    """A request as a worker needs it: authenticated, tagged, tokenised, validated."""

    request_id: str
    tenant: str
    adapter: str
    adapter_revision: str
    prompt: tuple[Segment, ...]  # a public prefix, if there is one, and what is the tenant's own
    sampling: inference_pb2.SamplingParams  # every default filled in
    priority: int = 0
    weight: float = 1.0
    cache_floor_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        return sum(len(segment.token_ids) for segment in self.prompt)

    @property
    def public_tokens(self) -> int:
        """Prompt tokens of a public prefix."""
        return sum(len(segment.token_ids) for segment in self.prompt[:-1])

    @property
    def extra_key(self) -> bytes:
        """The tenant's own."""
        return self.prompt[-1].extra_key

    def key(self) -> PrefixKey:
        """Return what names the prompt's KV, at any worker."""
        revision = self.adapter_revision
        return PrefixKey(tuple([Named(Namespace(part.extra_key, revision), part.token_ids) for part in self.prompt]))

    @property
    def max_tokens(self) -> int:
        """The most that one sequence of it can have."""
        return self.prompt_tokens + self.sampling.max_new_tokens

    @property
    def max_used_tokens(self) -> int:
        """The most that all its completions can use."""
        return self.prompt_tokens + self.sampling.n * self.sampling.max_new_tokens


class Fleet:
    """The links to all workers. Owns their tasks."""

    def __init__(self, addresses: Sequence[str], make_link: MakeLink, catalogue: Catalogue, router: Router) -> None:
        self._links = {address: make_link(address, self._changed) for address in addresses}
        self._catalogue = catalogue
        self._router = router
        self._tasks: list[asyncio.Task[None]] = []
        self._seen: dict[str, ServedModel] = {}  # by name: served now or before
        self._on_change: Callable[[], None] = lambda: None

    def start(self, on_change: Callable[[], None]) -> None:
        """Begin to connect. `on_change` is called whenever a worker has come or gone."""
        self._on_change = on_change
        self._tasks = [asyncio.create_task(link.run(), name=f"link to {link.address}") for link in self._links.values()]

    async def stop(self) -> None:
        """Close all links; whatever still runs on them ends. Stopping twice is harmless."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def fail_all(self, error: GatewayError) -> None:
        """End every running stream with `error`."""
        for link in self._links.values():
            link.fail_all(error)

    # ---------------------------------------------------------------------------------------------------- models

    @property
    def ready(self) -> bool:
        """Whether any worker is connected."""
        return any(link.model is not None for link in self._links.values())

    def models(self) -> list[ServedModel]:
        """Return the models that can be used now, by name."""
        by_name: dict[str, dict[bytes, list[ServedModel]]] = defaultdict(lambda: defaultdict(list))
        for link in self._links.values():
            if link.model is not None:
                by_name[link.model.name][link.model.fingerprint].append(link.model)
        # While workers move to a new version of a model, both exist: take the one that most of them serve.
        return [max(versions.values(), key=len)[0] for _, versions in sorted(by_name.items())]

    def model(self, name: str, may_use: Callable[[str], bool] = lambda _: True) -> ServedModel:
        """Return the model of this name, or for "" the only one of those that `may_use` allows.

        Raises NotFoundError, UnavailableError when no worker serves it now, InvalidRequestError when "" is not enough.
        """
        served = [model for model in self.models() if may_use(model.name)]
        found = [model for model in served if name in {"", model.name}]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(model.name for model in found)
            raise InvalidRequestError([Violation("model", f"is required where several models are served: {names}")])
        if not served or name in self._seen:
            raise self._no_worker(name)
        raise NotFoundError("model", name)

    def max_sequence_tokens(self, model: ServedModel) -> int:
        """Return the most tokens that any worker of the model can hold for one sequence. Raises UnavailableError."""
        links = self._links_of(model)
        if not links:
            raise self._no_worker(model.name)
        return max(link.max_sequence_tokens for link in links)

    # -------------------------------------------------------------------------------------------------- requests

    def submit(
        self, model: ServedModel, generation: Generation, timeout_s: float, traceparent: str = ""
    ) -> TokenStream:
        """Choose a worker and send it the request. `traceparent` "": it is not traced.

        Raises UnavailableError: AdapterChangedError where no worker has the adapter in this revision any more.
        """
        links = [link for link in self._links_of(model) if link.max_sequence_tokens >= generation.max_tokens]
        if not links:
            raise self._no_worker(model.name)
        if generation.adapter:
            links = [link for link in links if _has_adapter(link, generation)]
            if not links:
                raise AdapterChangedError
        key = generation.key()
        chosen = self._router.choose(Placement(model.name, key), [link.candidate() for link in links])
        return self._links[chosen.worker].submit(_submit(generation, timeout_s, traceparent), key)

    # ------------------------------------------------------------------------------------------- single workers

    def links(self) -> list[WorkerLink]:
        """Return the links to all workers, whether they are up or not."""
        return list(self._links.values())

    def in_flight(self) -> Mapping[str, Callable[[], int]]:
        """Return what says, by worker, how many requests it has now. From any thread."""
        return {address: lambda link=link: link.in_flight for address, link in self._links.items()}  # type: ignore[misc]

    def up(self, model: str) -> list[WorkerLink]:
        """Return the workers that take requests for a model, by its name."""
        served = next((each for each in self.models() if each.name == model), None)
        return [] if served is None else self._links_of(served)

    def down(self, model: str) -> list[WorkerLink]:
        """Return the workers that served a model and are away."""
        return [link for link in self._links.values() if link.model is None and link.last_model == model]

    def next_attempt_in_s(self) -> float | None:
        """Return the time until a worker that is away may be back; None if none is away."""
        return min([link.next_attempt_in_s() for link in self._links.values() if link.model is None], default=None)

    def _links_of(self, model: ServedModel) -> list[WorkerLink]:
        return [link for link in self._links.values() if link.model and link.model.fingerprint == model.fingerprint]

    def _no_worker(self, model: str) -> UnavailableError:
        what = f"model {model!r}" if model else "any model"
        return UnavailableError(
            f"no worker that serves {what} is connected at the moment",
            reason="NO_WORKER",
            retry_after_s=self.next_attempt_in_s(),  # nothing can change before
        )

    def _changed(self) -> None:
        up = [link.model for link in self._links.values() if link.model is not None]
        self._seen.update((model.name, model) for model in up)
        self._catalogue.forget_except({model.fingerprint for model in (*up, *self._seen.values())})
        self._on_change()


def _has_adapter(link: WorkerLink, generation: Generation) -> bool:
    return link.adapters.has(generation.tenant, generation.adapter, generation.adapter_revision)


def _submit(generation: Generation, timeout_s: float, traceparent: str) -> worker_pb2.Submit:
    return worker_pb2.Submit(
        request_id=generation.request_id,
        prompt=[
            worker_pb2.PromptSegment(extra_key=segment.extra_key, token_ids=segment.token_ids)
            for segment in generation.prompt
        ],
        tenant=generation.tenant,
        adapter=generation.adapter,
        adapter_revision=generation.adapter_revision,
        sampling=generation.sampling,
        timeout_ms=max(1, math.ceil(timeout_s * 1000)),  # 0 would mean no deadline
        priority=generation.priority,
        weight=generation.weight,
        cache_floor_tokens=generation.cache_floor_tokens,
        traceparent=traceparent,
    )
