"""All workers of this gateway, and which models they serve. Owns the links, and chooses nothing."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from gateway.dispatch.catalogue import Catalogue, ServedModel
from gateway.dispatch.link import WorkerLink
from gateway.errors import InvalidRequestError, NotFoundError, NoWorkerError, Violation

MakeLink = Callable[[str, Callable[[], None]], WorkerLink]  # (address, on_change) -> link


class Members(Protocol):
    """Who looks after each worker of a fleet, beside what goes over its link."""

    def joined(self, link: WorkerLink) -> None:
        """There is a link that was not there before."""
        ...

    def left(self, address: str) -> None:
        """The link to a worker is gone for good."""
        ...


class Fleet:
    """The links to all workers. Owns their tasks.

    Invariant: from `start` to `stop` each link has one task.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        make_link: MakeLink,
        catalogue: Catalogue,
        looks_again_s: float | None = None,
    ) -> None:
        """`looks_again_s`: how often others look for workers that are to be added; None: there are these alone."""
        self._make_link = make_link
        self._links = {address: make_link(address, self._changed) for address in addresses}
        self._catalogue = catalogue
        self._looks_again_s = looks_again_s
        self._retired: frozenset[str] = frozenset()
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by address
        self._running = False
        self._seen: dict[str, ServedModel] = {}  # by name: served now or before
        self._on_change: Callable[[], None] = lambda: None
        self._members: list[Members] = []

    def start(self, on_change: Callable[[], None]) -> None:
        """Begin to connect. `on_change` is called whenever a worker has come or gone."""
        self._on_change = on_change
        self._running = True
        for link in self._links.values():
            self._run(link)

    async def stop(self) -> None:
        """Close all links; whatever still runs on them ends. Stopping twice is harmless."""
        self._running = False
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ----------------------------------------------------------------------------------------------- coming and going

    def watch(self, members: Members) -> None:
        """Have `members` told of links that are added and dropped from now on."""
        self._members.append(members)

    def add(self, address: str) -> None:
        """Begin to keep a link to a worker. Where there is one already nothing changes."""
        if address in self._links:
            return
        link = self._links[address] = self._make_link(address, self._changed)
        for members in self._members:
            members.joined(link)
        if self._running:
            self._run(link)

    def retire(self, addresses: Collection[str]) -> None:
        """From now on these workers, and no others, get new requests only where nobody else serves their model."""
        self._retired = frozenset(addresses)

    async def drop(self, address: str) -> None:
        """Close the link to a worker and forget it; what still runs on it ends. Where there is none nothing changes."""
        if self._links.pop(address, None) is None:
            return
        self._retired -= {address}
        if (task := self._tasks.pop(address, None)) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for members in self._members:
            members.left(address)

    def _run(self, link: WorkerLink) -> None:
        self._tasks[link.address] = asyncio.create_task(link.run(), name=f"link to {link.address}")

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

        Raises NotFoundError, NoWorkerError when no worker serves it now, InvalidRequestError when "" is not enough.
        """
        served = [model for model in self.models() if may_use(model.name)]
        found = [model for model in served if name in {"", model.name}]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(model.name for model in found)
            raise InvalidRequestError([Violation("model", f"is required where several models are served: {names}")])
        if not served or name in self._seen:
            raise self.no_worker(name)
        raise NotFoundError("model", name)

    def max_sequence_tokens(self, model: ServedModel) -> int:
        """Return the most tokens that any worker of the model can hold for one sequence. Raises NoWorkerError."""
        links = self.links_of(model)
        if not links:
            raise self.no_worker(model.name)
        return max(link.max_sequence_tokens for link in links)

    # ------------------------------------------------------------------------------------------- single workers

    def links(self) -> list[WorkerLink]:
        """Return the links to all workers, whether they are up or not."""
        return list(self._links.values())

    def in_flight(self) -> Mapping[str, int]:
        """Return how many requests each worker has now. From any thread."""
        return {address: link.in_flight for address, link in self._links.copy().items()}

    def up(self, model: str) -> list[WorkerLink]:
        """Return the workers that take requests for a model, by its name."""
        served = next((each for each in self.models() if each.name == model), None)
        return [] if served is None else self.links_of(served)

    def down(self, model: str) -> list[WorkerLink]:
        """Return the workers that served a model and are away."""
        return [link for link in self._links.values() if link.model is None and link.last_model == model]

    def next_attempt_in_s(self) -> float | None:
        """Return the time until a worker that is away may be back, or another one be found; None if neither can be."""
        away = [link.next_attempt_in_s() for link in self._links.values() if link.model is None]
        if self._looks_again_s is not None and not away:
            away.append(self._looks_again_s)
        return min(away, default=None)

    def links_of(self, model: ServedModel) -> list[WorkerLink]:
        """Return the workers that are up and serve this model as it is; retired ones if there are no others."""
        links = [link for link in self._links.values() if link.model and link.model.fingerprint == model.fingerprint]
        return [link for link in links if link.address not in self._retired] or links

    def no_worker(self, model: str) -> NoWorkerError:
        """Return what is said where no worker serves a model now; "" for any model."""
        what = f"model {model!r}" if model else "any model"
        return NoWorkerError(
            f"no worker that serves {what} is connected at the moment",
            retry_after_s=self.next_attempt_in_s(),  # nothing can change before
        )

    def _changed(self) -> None:
        up = [link.model for link in self._links.values() if link.model is not None]
        self._seen.update((model.name, model) for model in up)
        self._catalogue.forget_except({model.fingerprint for model in (*up, *self._seen.values())})
        self._on_change()
