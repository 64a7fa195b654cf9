"""Does a scope keep what was asked in it from the rest of its own tenant?"""

from cli.isolation_check.looking import Look
from cli.isolation_check.probes import Probe, Question
from cli.isolation_check.prompts import Prompts
from cli.isolation_check.verdicts import Evidence


class ScopeCheck:
    name = "scope"

    def __init__(self, probe: Probe, prompts: Prompts, rounds: int) -> None:
        self.over = probe.over
        self._probe = probe
        self._prompts = prompts
        self._rounds = rounds

    def run(self, evidence: Evidence) -> None:
        look = Look(evidence, self._prompts)
        one, two = self._prompts.name("one"), self._prompts.name("two")
        for _ in range(self._rounds):
            tokens = self._prompts.fresh()
            look.own(self._probe, Question(tokens, scope=one), "a scope finds its own prompt")
            look.nothing(self._probe, Question(tokens, scope=two), "another scope finds nothing of it")
            look.nothing(self._probe, Question(tokens), "without a scope nothing of it is found")
            tokens = self._prompts.fresh()
            look.own(self._probe, Question(tokens), "without a scope a prompt is found")
            look.nothing(self._probe, Question(tokens, scope=one), "a scope finds nothing of what had none")
