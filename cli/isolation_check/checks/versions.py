"""Is what was cached out of reach once it has been invalidated? On a tenant made for it, so that nobody loses KV."""

from collections.abc import Callable

from cli.isolation_check.looking import Look, found, is_hit
from cli.isolation_check.operator import Operator
from cli.isolation_check.probes import Probe, Question
from cli.isolation_check.prompts import Prompts
from cli.isolation_check.verdicts import Evidence


class VersionCheck:
    name = "version"
    over = "gRPC"

    def __init__(
        self, operator: Operator, probe_of: Callable[[str], Probe], neighbour: Probe, prompts: Prompts
    ) -> None:
        """`neighbour` speaks for another tenant, which must not notice."""
        self._operator = operator
        self._probe_of = probe_of
        self._neighbour = neighbour
        self._prompts = prompts

    def run(self, evidence: Evidence) -> None:
        look = Look(evidence, self._prompts)
        with self._operator.guest(self._prompts.name("version")) as guest:
            probe, question = self._probe_of(guest.key), Question(self._prompts.fresh())
            undisturbed = Question(self._prompts.fresh())
            look.own(self._neighbour, undisturbed, "a neighbour finds its own prompt")
            look.own(probe, question, "a tenant finds its own prompt")
            self._operator.client.cache.invalidate(guest.tenant_id)
            look.nothing(probe, question, "after its cache was invalidated it finds nothing of it")
            look.own(probe, question, "it finds it again once it has asked anew")
            reply = self._neighbour.ask(undisturbed)
            evidence.control("the neighbour still finds its own", found(reply), is_hit(reply))
