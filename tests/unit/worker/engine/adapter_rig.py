"""An engine with places for adapters, and requests that name them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hicache.keys import Namespace
from tests.unit.worker.engine.harness import VOCAB, Rig, make_request
from worker.config import EngineConfig
from worker.engine import Request
from worker.engine.branches import branch_seed
from worker.engine.departures import Gone
from worker.engine.fake import FakeAdapters, continuation

PATIENCE = 5.0  # in steps, each of which takes one second
EXTRA_KEY = b"a" * 16


def adapted(number: int, revision: str, tokens: Sequence[int] = (1, 2, 3), **changes: Any) -> Request:
    """Return a request for an adapter, "" for none."""
    request = make_request(number, tokens, namespace=Namespace(EXTRA_KEY, revision), **changes)
    return replace(request, adapter=revision)


def truth(request: Request, index: int = 0) -> list[int]:
    """Return a completion of a request, computed with its adapter and nothing else around."""
    return continuation(
        [int(token) for token in request.key.token_ids],
        request.params.max_new_tokens,
        VOCAB,
        request.adapter_revision,
        branch_seed(request.params.seed, index),
    )


class AdapterRig(Rig):
    """Knows the adapters of `revisions`; remembers what went."""

    def __init__(self, num_places: int, revisions: str = "", **options: Any) -> None:
        self.adapters: FakeAdapters = options.pop("adapters", None) or FakeAdapters(num_places)
        config = options.pop("config", None) or EngineConfig(adapter_patience_s=PATIENCE)
        super().__init__(adapters=self.adapters, config=config, **options)
        self.requests: dict[int, Request] = {}
        self.gone: list[Gone] = []
        for revision in revisions:
            self.engine.add_adapter(revision)

    def submit(self, *requests: Request) -> None:
        self.requests.update((request.sequence_id[1], request) for request in requests)
        super().submit(*requests)

    def retire(self, revision: str, grace: float = 1000.0) -> None:
        self.engine.retire_adapter(revision, self.now + grace, self.gone.append)

    def run_with(self, number: int, revision: str, **changes: Any) -> list[int]:
        """Submit a request for an adapter and let everybody here come to an end; return its tokens."""
        self.submit(adapted(number, revision, **changes))
        self.run()
        return self.tokens(number)

    def is_resident(self, revision: str) -> bool:
        return any(state.revision == revision and state.resident for state in self.engine.adapters())

    def assert_true(self, *numbers: int) -> None:
        """Each of these, or all requests, got exactly what its adapter computes."""
        for number in numbers or self.requests:
            assert self.tokens(number) == truth(self.requests[number]), number
