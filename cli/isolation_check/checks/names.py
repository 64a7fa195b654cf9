"""Can a tenant tell what belongs to another one from what does not exist?"""

from cli.isolation_check.probes import Pair, Probe, Question, Refused
from cli.isolation_check.prompts import Prompts
from cli.isolation_check.verdicts import Evidence, Skipped


class NameCheck:
    """An adapter that one tenant has and the other one has not."""

    name = "names"

    def __init__(self, pair: Pair, adapter: str, prompts: Prompts) -> None:
        self.over = pair.over
        self._pair = pair
        self._adapter = adapter
        self._prompts = prompts

    def run(self, evidence: Evidence) -> None:
        pair, adapter = self._which()
        tokens = self._prompts.fresh(8)
        unknown = self._prompts.name("unknown")
        pair.mine.ask(Question(tokens, adapter=adapter))
        evidence.control("a tenant may use its adapter", adapter, True)
        evidence.claim("the other tenant does not see it", adapter, adapter not in pair.others.adapters())
        private = _refusal(pair.others, Question(tokens, adapter=adapter))
        nowhere = _refusal(pair.others, Question(tokens, adapter=unknown))
        evidence.control(
            "what does not exist is not found",
            str(nowhere),
            nowhere is not None and nowhere.code == pair.others.not_found,
        )
        same = private is not None and nowhere is not None and private.without(adapter) == nowhere.without(unknown)
        evidence.claim("the other tenant's answer is that for what does not exist", str(private), same)

    def _which(self) -> tuple[Pair, str]:
        """Return the pair, the owner first, and an adapter that only the owner has."""
        for pair in (self._pair, self._pair.swapped()):
            private = pair.mine.adapters() - pair.others.adapters()
            if self._adapter in private:
                return pair, self._adapter
            if private and not self._adapter:
                return pair, min(private)
        raise Skipped(
            "neither tenant has an adapter that the other one may not use: load one for one of them, or "
            "give the admin token and --adapter-folder"
        )


def _refusal(probe: Probe, question: Question) -> Refused | None:
    try:
        probe.ask(question)
    except Refused as refused:
        return refused
    return None
