"""Does a tenant find what another one has asked?"""

from cli.isolation_check.looking import Look
from cli.isolation_check.probes import Pair, Question
from cli.isolation_check.prompts import Prompts
from cli.isolation_check.verdicts import Evidence


class TenantCheck:
    name = "tenant"

    def __init__(self, pair: Pair, prompts: Prompts, rounds: int) -> None:
        self.over = pair.over
        self._pair = pair
        self._prompts = prompts
        self._rounds = rounds

    def run(self, evidence: Evidence) -> None:
        look = Look(evidence, self._prompts)
        scope = self._prompts.name("shared-scope")
        for number in range(self._rounds):
            pair = self._pair if number % 2 == 0 else self._pair.swapped()
            for named, words in (("", ""), (scope, ", in a scope of the same name")):
                question = Question(self._prompts.fresh(), scope=named)
                look.own(pair.mine, question, f"a tenant finds its own prompt{words}")
                look.nothing(pair.others, question, f"the other tenant finds nothing of it{words}")
                look.own(pair.others, question, f"the other tenant finds it once it has asked itself{words}")
