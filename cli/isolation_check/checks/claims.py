"""Is everybody refused who says who they are, or which cache is theirs, instead of proving it?"""

from cli.isolation_check.probes import Claim, Probe, Question, Refused
from cli.isolation_check.prompts import Prompts
from cli.isolation_check.verdicts import Evidence


class ClaimCheck:
    name = "claims"

    def __init__(self, probe: Probe, prompts: Prompts) -> None:
        self.over = probe.over
        self._probe = probe
        self._prompts = prompts

    def run(self, evidence: Evidence) -> None:
        question = Question(self._prompts.fresh(8))
        places = sorted({claim.place for claim in self._probe.claims} - {"body"})
        for place in places:
            harmless = Claim(place, "x-request-start", "1")
            self._probe.ask(question, harmless)
            evidence.control(f"other {place} is let through", harmless.name, True)
        for place in (*places, "body"):
            claims = [claim for claim in self._probe.claims if claim.place == place]
            taken = [claim.name for claim in claims if not self._is_refused(question, claim)]
            seen = f"{len(claims) - len(taken)} of {len(claims)} refused"
            seen += f"; not refused: {', '.join(taken)}" if taken else ""
            evidence.claim(f"identity claimed in the {place} is refused", seen, not taken)

    def _is_refused(self, question: Question, claim: Claim) -> bool:
        try:
            self._probe.ask(question, claim)
        except Refused as refused:
            return refused.code in self._probe.refusals_of_claims
        return False
