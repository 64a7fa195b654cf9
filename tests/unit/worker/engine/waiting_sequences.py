"""Sequences for tests of waiting lines, without an engine, and a cache that has what a test says."""

from collections import Counter
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

from hicache.cache import Hit
from hicache.keys import Namespace
from tests.unit.worker.engine.harness import make_request
from worker.batch import SamplingParams
from worker.engine.ports import Admission
from worker.engine.sequence import Sequence


def waiting(
    order: int,
    tokens: SequenceOf[int] = (1, 2, 3),
    *,
    tenant: str = "a",
    priority: int = 0,
    weight: float = 1.0,
    max_new_tokens: int = 4,
    ignore_eos: bool = True,
    arrived_at: float = 0.0,
    inherited: SequenceOf[int] = (),
) -> Sequence:
    """Return a sequence that has arrived and not started."""
    params = SamplingParams(max_new_tokens=max_new_tokens, temperature=0.0, ignore_eos=ignore_eos)
    request = make_request(
        order, tokens, tenant=tenant, priority=priority, params=params, namespace=namespace_of(tenant)
    )
    return Sequence(replace(request, weight=weight), order, arrived_at, frozenset(), inherited=inherited)


def namespace_of(tenant: str) -> Namespace:
    return Namespace(tenant.encode().ljust(16, b"."))


def finish(sequence: Sequence, cached_tokens: int, num_outputs: int) -> None:
    """Let a sequence have run to its end."""
    sequence.admission = Admission(sequence.num_given, Hit(cached_tokens))
    for _ in range(num_outputs):
        sequence.append(0, 0.0)


def is_ready(_: Sequence) -> bool:
    return True


class ToldCache:
    """Has of each sequence, by its order, what a test says; counts how often it is asked."""

    def __init__(self, tokens: dict[int, int] | None = None, page_size: int = 1) -> None:
        self.tokens = tokens or {}
        self.page_size = page_size
        self.asked: Counter[int] = Counter()

    def cached_tokens(self, sequence: Sequence) -> int:
        self.asked[sequence.order] += 1
        return self.tokens.get(sequence.order, 0)
