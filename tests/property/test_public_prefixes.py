"""Requests that begin in public namespaces and go on in their tenants' own: who finds what, whatever else happens.

Beside the engine stands an oracle that knows no tree: it labels every token with the namespace that its page belongs
to, and lets a request share with an earlier one as far as both labels and tokens agree.
"""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache.cache import PrefixCache
from hicache.keys import Namespace, PrefixKey, Segment
from tests.property.engine_answers import MAX_NEW_TOKENS, assert_true_answers, inherited, varied
from tests.unit.worker.engine.harness import Rig, make_request
from worker.config import EngineConfig
from worker.engine import Request

TENANTS = ("a", "b", "c")
PUBLIC = ("p", "q")

Label = tuple[Namespace, int]


def space(name: str) -> Namespace:
    return Namespace(name.encode() * 16)


def labels(key: PrefixKey, page_size: int) -> list[Label]:
    """What a token has to agree in with another one: its own value, and whose page it lies in. Of whole pages alone.

    A page belongs to the segment in which its last token lies.
    """
    owners = [segment.namespace for segment in key.segments for _ in range(len(segment))]
    tokens = key.token_ids.tolist()
    whole = len(tokens) // page_size * page_size
    return [(owners[index // page_size * page_size + page_size - 1], tokens[index]) for index in range(whole)]


def shared(one: list[Label], other: list[Label], page_size: int) -> int:
    """How many leading tokens agree, in whole pages."""
    count = 0
    for ours, theirs in zip(one, other, strict=False):
        if ours != theirs:
            break
        count += 1
    return count // page_size * page_size


class World:
    """One run: a rig, a random number generator that decides everything, and what was asked for."""

    def __init__(self, seed: int, page_size: int, num_pages: int, *, roomy: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.page_size = page_size
        config = EngineConfig(
            max_running=int(self.rng.integers(1, 9)),
            max_step_tokens=int(self.rng.integers(9, 64)),
            max_chunk_tokens=int(self.rng.choice([3, 7, 64])),
            min_shared_tokens=int(self.rng.choice([1, 8])),
            headroom_tokens=int(self.rng.integers(1, 20)),
            order=str(self.rng.choice(["fair", "fcfs", "lpm", "dfs_weight", "priority"])),  # type: ignore[arg-type]
        )
        self.cache = PrefixCache(num_pages * page_size, page_size=page_size)
        self.rig = Rig(num_pages * page_size, page_size, config=config, cache=lambda _: self.cache)
        self.roomy = roomy
        self.max_prompt = min(64, self.cache.num_slots - MAX_NEW_TOKENS)
        self.requests: dict[int, Request] = {}

    def key(self, tenant: str) -> PrefixKey:
        """One of a few beginnings, in one namespace or in two with the barrier anywhere, and an end that differs."""
        beginning = np.random.default_rng(int(self.rng.integers(2))).integers(0, 50, self.max_prompt).tolist()
        length = int(self.rng.integers(1, self.max_prompt + 1))
        tokens = beginning[:length]
        if self.rng.random() < 0.5:
            tokens[-1] = int(self.rng.integers(50))
        if self.rng.random() < 0.25:
            return PrefixKey.of(space(tenant), tokens)
        # Often all of it, as a prompt that ends where its public part does.
        barrier = int(self.rng.choice([length, length // 2, max(0, length - 1), int(self.rng.integers(0, length + 1))]))
        public = space(str(self.rng.choice(PUBLIC)))
        return PrefixKey((Segment(public, tokens[:barrier]), Segment(space(tenant), tokens[barrier:])))

    def submit(self) -> None:
        number = len(self.requests)
        tenant = str(self.rng.choice(TENANTS))
        request = make_request(
            number, max_new_tokens=int(self.rng.integers(1, MAX_NEW_TOKENS + 1)), tenant=tenant,
            priority=int(self.rng.integers(0, 2)),
        )  # fmt: skip
        floor = int(self.rng.choice([0, 0, 8, 30]))
        request = replace(request, key=self.key(tenant), cache_floor_tokens=0 if self.roomy else floor)
        request = varied(request, int(self.rng.integers(1 << 32)))
        if len(request.key) + request.params.max_new_tokens <= self.cache.max_lease_slots_of(tenant):
            self.requests[number] = request
            self.rig.submit(request)

    def act(self) -> None:
        dice = self.rng.random()
        if dice < 0.25:
            self.submit()
        elif dice < 0.28 and self.requests:
            self.rig.engine.cancel((0, int(self.rng.integers(len(self.requests)))), self.rig.now)
        elif dice < 0.3 and not self.roomy:
            self.rig.engine.drop_cache([space(str(self.rng.choice([*TENANTS, *PUBLIC])))])
            self.rig.engine.check()
        else:
            self.rig.step()

    def finish(self) -> None:
        self.rig.run()
        self.rig.assert_nothing_is_held()

    def known(self, number: int, *, computed: bool = False) -> list[list[Label]]:
        """The labels of all that was known of a request: of each completion, with the tokens that it got.

        The last one that was sampled is never `computed`.
        """
        answers = {index: self.rig.tokens(number, index) for index in range(self.requests[number].params.n)}
        return [
            labels(self.given(number, index).extend(answer[: len(answer) - computed]), self.page_size)
            for index, answer in answers.items()
        ]

    def given(self, number: int, index: int) -> PrefixKey:
        """What a completion came with."""
        request = self.requests[number]
        return request.key.extend(np.array(inherited(request, index), dtype=np.int32))

    def assert_nobody_finds_what_is_not_his(self) -> None:
        everything = {number: self.known(number) for number in self.requests}
        for number, request in self.requests.items():
            indices = [each.index for each in request.continued] or [0]
            for index in indices:
                if not self.rig.tokens(number, index):
                    continue
                own = labels(self.given(number, index), self.page_size)
                others = [each for other in self.requests if other != number for each in everything[other]]
                # Each that goes on is admitted by itself, and may find what the others of its request have computed.
                others += [everything[number][other] for other in indices if other != index]
                most = max([shared(own, each, self.page_size) for each in others], default=0)
                assert self.rig.admission(number, index).hit.total <= most


@settings(max_examples=35)
@given(
    seed=st.integers(0, 2**32 - 1),
    page_size=st.sampled_from([1, 4, 16]),
    pages=st.integers(0, 12),
    roomy=st.booleans(),
)
def test_hits_are_of_ones_own_and_of_what_is_public_and_answers_are_true(
    seed: int, page_size: int, pages: int, roomy: bool
) -> None:
    num_pages = 400 // page_size * 10 if roomy else (7 + pages if page_size == 16 else (100 + 20 * pages) // page_size)
    world = World(seed, page_size, num_pages, roomy=roomy)
    for _ in range(100):
        world.act()
    world.finish()
    assert_true_answers(world.rig, world.requests)
    world.assert_nobody_finds_what_is_not_his()


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), page_size=st.sampled_from([1, 4, 16]))
def test_one_after_another_finds_all_that_it_may(seed: int, page_size: int) -> None:
    """Nothing is evicted: what could be shared is."""
    world = World(seed, page_size, 8_000 // page_size, roomy=True)
    for number in range(12):
        world.submit()
        world.rig.run()
        assert number in world.requests
        request = world.requests[number]
        index = request.continued[0].index if request.continued else 0
        if len(request.continued) > 1 or not world.rig.tokens(number, index):
            continue
        if request.params.prompt_logprobs is not None and not request.continued:
            continue
        earlier = [each for other in range(number) for each in world.known(other, computed=True)]
        key = world.given(number, index)
        own = labels(key, page_size)[: (len(key) - 1) // page_size * page_size]
        expected = max([shared(own, each, page_size) for each in earlier], default=0)
        assert world.rig.admission(number, index).hit.device == expected
