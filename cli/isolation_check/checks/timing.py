"""Does the time to the first token tell a tenant what another one has asked?

Two comparisons of the same kind. The claim: the other tenant asks a prompt that is cached for its neighbour, and one
that nobody has asked, and must not be faster with the first. The control: the neighbour itself must be, or the times
say nothing. Pairs are measured one right after the other, in alternating order, so that what else the machine does
falls on both.
"""

import statistics
from collections.abc import Callable, Sequence

from cli.isolation_check.looking import ask_until_found
from cli.isolation_check.probes import Pair, Probe, Question
from cli.isolation_check.prompts import Prompts
from cli.isolation_check.ranks import SignedRanks, signed_ranks
from cli.isolation_check.verdicts import Evidence

MIN_PAIRS = 20  # with fewer, not even a perfect separation is as unlikely as the level below
_LEVEL = 1e-4
_WARM_UP_ROUNDS = 2

Progress = Callable[[float], None]


class TimingCheck:
    name = "timing"

    def __init__(self, pair: Pair, prompts: Prompts, pairs: int, on_progress: Progress) -> None:
        self.over = pair.over
        self._mine = pair.mine
        self._others = pair.others
        self._prompts = prompts
        self._pairs = max(pairs, MIN_PAIRS)
        self._on_progress = on_progress

    def run(self, evidence: Evidence) -> None:
        own: list[float] = []
        others: list[float] = []
        for number in range(-_WARM_UP_ROUNDS, self._pairs):
            cached = Question(self._prompts.fresh())
            ask_until_found(self._mine, cached)
            of_others = self._saved_s(self._others, cached, number)
            of_own = self._saved_s(self._mine, cached, number)
            if number >= 0:
                others.append(of_others)
                own.append(of_own)
                self._on_progress((number + 1) / self._pairs)
        judge(evidence, own, others)

    def _saved_s(self, probe: Probe, cached: Question, number: int) -> float:
        """Return by how much a prompt that is cached for one of the tenants is faster than one that is for none."""
        fresh = Question(self._prompts.fresh())
        if number % 2 == 0:
            known_s = probe.ask(cached).first_token_s
            fresh_s = probe.ask(fresh).first_token_s
        else:
            fresh_s = probe.ask(fresh).first_token_s
            known_s = probe.ask(cached).first_token_s
        return fresh_s - known_s


def judge(evidence: Evidence, own: Sequence[float], others: Sequence[float]) -> None:
    """Write down what saved times say: of a tenant's own cached prompts, and of those of its neighbour."""
    own_test, others_test = signed_ranks(own), signed_ranks(others)
    saved = statistics.median(own)
    evidence.control(
        "a tenant's own cached prompt is faster than a new one",
        _figures(own, own_test),
        own_test.p_value < _LEVEL and own_test.effect > 0 and saved > 0,
    )
    evidence.claim(
        "the other tenant cannot tell it from a new one",
        _figures(others, others_test),
        others_test.p_value >= _LEVEL,
    )
    # No difference is shown by not finding one only where the times would have shown half of the real one.
    evidence.control(
        "what the other tenant's times differ by is far below that",
        f"{abs(statistics.median(others)) * 1e3:.2f} ms beside {saved * 1e3:.2f} ms",
        abs(statistics.median(others)) < saved / 2,
    )


def _figures(saved: Sequence[float], test: SignedRanks) -> str:
    return (
        f"median {statistics.median(saved) * 1e3:+.2f} ms over {len(saved)} pairs, "
        f"effect {test.effect:+.2f}, p = {test.p_value:.2g}"
    )
