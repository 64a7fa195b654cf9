"""A request may be cut off after any step, and go on elsewhere: its tokens, text and log probabilities are those of one
that nobody disturbed, and nothing of them is told twice.
"""

import random
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.tiny_tokenizer import tiny_tokenizer
from tests.unit.worker.engine.harness import EOS, TENANT_B, VOCAB, Rig, make_request, prompt
from worker.batch import Batch, Executor, SampledToken, SampleRow, SamplingParams, TokenLogprobs
from worker.config import EngineConfig
from worker.engine import FinishReason, Request, SequenceOutput
from worker.engine.constraints import allows
from worker.engine.executors import InlineExecutor
from worker.engine.fake_constraint import FakeConstraint
from worker.engine.ports import Continued
from worker.errors import Failure
from worker.model.text import TokenizerTextStreams

MAX_NEW_TOKENS = 24
WORDS = " Zürich 🙂 漢字 one two 👩‍👩‍👧 né, the end."
STOPS = ("🙂 ", "h 🙂", "字 one", "two ", "👩‍👧", "é", "the end.", "nd", "no such thing")


@cache
def script() -> list[int]:
    return tiny_tokenizer().encode(WORDS).ids


class Particular:
    """Samples by all that a row says, so that whatever of it changes when a sequence moves shows in its tokens.

    It likes to go on with the words of the script: characters of several tokens and stop strings do come.
    """

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self._after: dict[tuple[int, ...], list[int]] = {}  # what follows one or two tokens of the script
        for end in range(1, len(script())):
            for size in (1, 2):
                self._after.setdefault(tuple(script()[max(0, end - size) : end]), []).append(script()[end])

    def run(self, batch: Batch) -> list[SampledToken]:
        return [self._token(row, token) for row, token in zip(batch.samples, self._inner.run(batch), strict=True)]

    def _token(self, row: SampleRow, token: SampledToken) -> SampledToken:
        if row.given_token_id is not None:
            return token
        outputs = tuple(row.output_token_ids)
        # `token` says that the slots hold the history, all of it and no other.
        said = repr((token.token_id, row.position, len(row.prompt_token_ids), outputs, row.params))
        mixed = int.from_bytes(blake2b(said.encode(), digest_size=8).digest())
        chosen = EOS if mixed % 31 == 0 else script()[mixed // 31 % len(script())]
        following = self._after.get(outputs[-2:], [])
        if following and mixed % 8:
            chosen = following[mixed // 8 % len(following)]
        while chosen in row.banned_token_ids or not allows(row.allowed, chosen):
            chosen = (chosen + 1) % VOCAB
        if row.params.logprobs is None:
            return SampledToken(chosen)
        top = tuple((chosen + rank, -float(rank)) for rank in range(row.params.logprobs))
        return SampledToken(chosen, TokenLogprobs(-(mixed % 997) / 8, top))


@dataclass
class Told:
    """Everything that a client has got of one completion."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: FinishReason | Failure | None = None

    def hear(self, output: SequenceOutput) -> None:
        assert self.finish is None, "news of a completion that has ended"
        self.token_ids += output.token_ids
        self.text += output.text
        self.logprobs += output.logprobs
        self.prompt_logprobs += output.prompt_logprobs
        self.finish = output.finish


class Client:
    """Whoever asked, across engines: knows what was told, and asks the next engine for the rest."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.told = [Told() for _ in range(request.params.n)]

    @property
    def is_served(self) -> bool:
        return all(told.finish is not None for told in self.told)

    def rest(self) -> Request:
        """Return what is to be asked for when an engine is gone."""
        begun = [bool(told.token_ids) for told in self.told]
        assert any(begun) == all(begun), "some completions have begun, and others have not"
        if not all(begun):
            self.told = [Told() for _ in self.told]
            return self.request
        going_on = [
            Continued(index, tuple(told.token_ids)) for index, told in enumerate(self.told) if told.finish is None
        ]
        return replace(self.request, continued=tuple(going_on))

    def hear(self, outputs: list[SequenceOutput]) -> None:
        for output in outputs:
            if output.sequence_id == self.request.sequence_id:
                self.told[output.index].hear(output)


@dataclass(frozen=True)
class Setting:
    """An engine, and who else is there."""

    page_size: int
    num_slots: int
    config: EngineConfig
    overlapped: bool
    is_warm: bool  # the request was answered here before
    company: int  # requests of others

    def rig(self, request: Request) -> Rig:
        rig = Rig(
            self.num_slots,
            self.page_size,
            config=self.config,
            text=TokenizerTextStreams(tiny_tokenizer()),
            running=lambda executor: InlineExecutor(Particular(executor)),
        )
        if self.is_warm:
            rig.submit(replace(request, sequence_id=(0, 100)))
            rig.run()
        if self.overlapped:
            rig.beside = lambda: None
        for number in range(self.company):
            own = {} if number % 2 else {"namespace": TENANT_B, "tenant": "b"}
            rig.submit(make_request(200 + number, prompt(12, number % 2), max_new_tokens=20, **own))  # type: ignore[arg-type]
        return rig


ALONE = Setting(1, 10_000, EngineConfig(), overlapped=False, is_warm=False, company=0)


def draw_setting(dice: random.Random) -> Setting:
    return Setting(
        page_size=dice.choice([1, 1, 4]),
        num_slots=dice.choice([72, 120, 1000]),
        config=EngineConfig(
            max_running=dice.choice([2, 5, 32]),
            max_step_tokens=dice.choice([33, 64, 512]),
            max_chunk_tokens=dice.choice([3, 16, 512]),
            headroom_tokens=dice.choice([1, 8]),
            min_shared_tokens=dice.choice([1, 1000]),
            order=dice.choice(["fair", "fcfs", "lpm", "dfs_weight", "priority"]),
        ),
        overlapped=dice.random() < 0.5,
        is_warm=dice.random() < 0.3,
        company=dice.choice([0, 0, 2, 5]),
    )


def draw_request(dice: random.Random) -> Request:
    params = SamplingParams(
        max_new_tokens=dice.randint(2, MAX_NEW_TOKENS),
        temperature=dice.choice([0.0, 1.0]),
        repetition_penalty=dice.choice([1.0, 1.3]),
        presence_penalty=dice.choice([0.0, 0.5]),
        frequency_penalty=dice.choice([0.0, -0.5]),
        seed=dice.getrandbits(64),
        stop=tuple(dice.sample(STOPS, dice.choice([0, 0, 1, 3]))),
        stop_token_ids=tuple(dice.sample(script(), dice.choice([0, 0, 1]))),
        ignore_eos=dice.random() < 0.5,
        min_new_tokens=dice.choice([0, 0, 5, 12]),
        logprobs=dice.choice([None, 0, 2]),
        n=dice.choice([1, 1, 2, 4]),
        prompt_logprobs=dice.choice([None, None, 0]),
    )
    request = make_request(0, [*script()[: dice.randrange(8)], *prompt(dice.randint(1, 12))], params=params)
    if dice.random() < 0.25:
        constraint = FakeConstraint(VOCAB, dice.randint(2, 30), end_token_ids=(EOS,))
        request = replace(request, constraint=constraint)
    return request


def undisturbed(request: Request) -> list[Told]:
    client, rig = Client(request), ALONE.rig(request)
    rig.submit(request)
    while rig.engine.has_work:
        client.hear(rig.step())
    assert client.is_served
    return client.told


def serve(client: Client, setting: Setting, max_steps: int) -> int:
    """Let a new engine serve the rest for so many steps at most; return how many completions it took over."""
    rest = client.rest()
    rig = setting.rig(client.request)
    counted_before = len(rig.observer.admissions)
    rig.submit(rest)
    for _ in range(max_steps):
        if client.is_served:
            break
        client.hear(rig.step())
    if client.is_served:
        rig.run()
        rig.assert_nothing_is_held()
    # What goes on is counted as that; of those that begin, others included, each is counted once.
    assert len(rig.observer.continuations) <= len(rest.continued)
    assert len(rig.observer.admissions) <= counted_before + setting.company + (not rest.continued)
    return len(rest.continued)


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_is_cut_off_anywhere_goes_on_elsewhere_as_if_nobody_had_disturbed_it(seed: int) -> None:
    dice = random.Random(seed)
    client = Client(draw_request(dice))
    truth = undisturbed(client.request)
    for _ in range(dice.randint(1, 3)):
        if not client.is_served:
            serve(client, draw_setting(dice), max_steps=dice.randint(0, 20))
    if not client.is_served:
        serve(client, draw_setting(dice), max_steps=10_000)
    assert client.told == truth


def test_cuts_at_every_single_step_of_a_request_with_everything_change_nothing() -> None:
    params = SamplingParams(
        max_new_tokens=MAX_NEW_TOKENS, seed=27, n=3, stop=("the end.",), logprobs=1, prompt_logprobs=0,
        min_new_tokens=4, ignore_eos=True,
    )  # fmt: skip
    request = make_request(0, prompt(9), params=params)
    truth = undisturbed(request)
    assert any("👩" in told.text for told in truth)
    assert {told.finish for told in truth} == set(FinishReason)
    num_taken_over = 0
    for max_steps in range(MAX_NEW_TOKENS + 1):
        client = Client(request)
        serve(client, ALONE, max_steps)
        if not client.is_served:
            num_taken_over += serve(client, ALONE, max_steps=10_000)
        assert client.told == truth
    assert num_taken_over > MAX_NEW_TOKENS


def test_a_request_that_moves_on_after_each_of_its_tokens_gets_the_same_answer() -> None:
    request = make_request(
        0, prompt(9), params=SamplingParams(max_new_tokens=16, seed=8, n=2, ignore_eos=True, stop=("é",))
    )
    client = Client(request)
    num_moves = 0
    while not client.is_served:
        serve(client, ALONE, max_steps=1)
        num_moves += 1
    assert client.told == undisturbed(request)
    assert num_moves > 8
