"""Is KV of one set of weights ever taken for another's?"""

import time
from collections.abc import Callable

from cli.admin_client.adapter_calls import AdapterName
from cli.isolation_check.looking import Look
from cli.isolation_check.operator import Operator
from cli.isolation_check.probes import Probe, Question, Refused
from cli.isolation_check.prompts import Prompts
from cli.isolation_check.verdicts import Evidence, Skipped

_PATIENCE_S = 60.0
_POLL_S = 0.1


class AdapterCheck:
    """The base model and an adapter of it."""

    name = "adapter"

    def __init__(self, probe: Probe, adapter: str, prompts: Prompts, rounds: int) -> None:
        self.over = probe.over
        self._probe = probe
        self._adapter = adapter
        self._prompts = prompts
        self._rounds = rounds

    def run(self, evidence: Evidence) -> None:
        adapter = self._adapter or min(self._probe.adapters(), default="")
        if not adapter:
            raise Skipped("the tenant has no adapter: load one, or give the admin token and --adapter-folder")
        look = Look(evidence, self._prompts)
        # Requests of one scope stay with one revision, where an adapter has two.
        scope = self._prompts.name("adapter")
        for _ in range(self._rounds):
            tokens = self._prompts.fresh()
            base, adapted = Question(tokens, scope), Question(tokens, scope, adapter)
            look.own(self._probe, base, "the base model finds its own prompt")
            look.nothing(self._probe, adapted, "the adapter finds nothing of the base model's")
            look.own(self._probe, adapted, "the adapter finds its own")
            tokens = self._prompts.fresh()
            base, adapted = Question(tokens, scope), Question(tokens, scope, adapter)
            look.own(self._probe, adapted, "the adapter finds its own")
            look.nothing(self._probe, base, "the base model finds nothing of the adapter's")


class RevisionCheck:
    """Other weights under the name of an adapter, on a tenant made for it."""

    name = "revision"
    over = "gRPC"

    def __init__(
        self,
        operator: Operator,
        probe_of: Callable[[str], Probe],
        model: str,
        folders: tuple[str, str],
        prompts: Prompts,
    ) -> None:
        """`folders`: two adapters of the model, of different weights, as the workers' machines know them."""
        self._operator = operator
        self._probe_of = probe_of
        self._model = model
        self._folders = folders
        self._prompts = prompts

    def run(self, evidence: Evidence) -> None:
        with self._operator.guest(self._prompts.name("revision")) as guest:
            which = AdapterName(self._prompts.name("adapter"), self._model, (guest.tenant_id,))
            with self._operator.adapter(which, self._folders[0]) as first:
                self._look(evidence, self._probe_of(guest.key), which, first)

    def _look(self, evidence: Evidence, probe: Probe, which: AdapterName, first: str) -> None:
        look = Look(evidence, self._prompts)
        question = Question(self._prompts.fresh(), self._prompts.name("scope"), which.name)
        wait_for_answer(probe, Question(self._prompts.fresh(), question.scope, which.name))
        look.own(probe, question, "an adapter finds its own prompt")
        second = self._operator.register(which, self._folders[1])
        if first == second:
            raise Skipped("the two folders of --adapter-folder hold the same weights")
        look.nothing(probe, question, "with other weights under its name nothing of it is found")
        look.own(probe, question, "the other weights find their own")


def wait_for_answer(probe: Probe, question: Question) -> None:
    """Wait until the adapter that the question names is there."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            probe.ask(question)
        except Refused as refused:
            if refused.code != probe.not_found or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)
        else:
            return
