"""What checks do with a probe: put a prompt into the cache, and see what is found of it."""

from cli.isolation_check.probes import Probe, Question, Reply
from cli.isolation_check.prompts import Prompts
from cli.isolation_check.verdicts import Evidence

# Several workers may have to see a prompt before one sees it again.
_MAX_ASKS = 12


class Look:
    """Writes down what probes find."""

    def __init__(self, evidence: Evidence, prompts: Prompts) -> None:
        self._evidence = evidence
        self._by_chance = prompts.by_chance

    def own(self, probe: Probe, question: Question, what: str) -> Reply:
        """Ask until the prompt is found again: a control. Returns the last reply."""
        reply = ask_until_found(probe, question)
        self._evidence.control(what, found(reply), is_hit(reply))
        return reply

    def nothing(self, probe: Probe, question: Question, what: str) -> Reply:
        """Ask once, and claim that nothing is found but what prompts have in common by chance."""
        reply = probe.ask(question)
        self._evidence.claim(what, found(reply), self.is_nothing(reply))
        return reply

    def is_nothing(self, reply: Reply) -> bool:
        return reply.cached <= self._by_chance


def ask_until_found(probe: Probe, question: Question) -> Reply:
    """Ask, and again until the prompt is found, or a number of times. Returns the last reply."""
    probe.ask(question)
    for _ in range(_MAX_ASKS):
        reply = probe.ask(question)
        if is_hit(reply):
            break
    return reply


def is_hit(reply: Reply) -> bool:
    """Whether a prompt was found. Not all of it need be: the last token is computed, and hits may be whole pages."""
    return reply.cached >= reply.prompt_tokens / 2


def found(reply: Reply) -> str:
    return f"{reply.cached} of {reply.prompt_tokens} cached"
