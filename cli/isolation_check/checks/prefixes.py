"""Is a public prefix shared up to its end, and nothing behind it? And nothing at all once it is deleted?"""

import time

from cli.isolation_check.looking import Look, found
from cli.isolation_check.operator import Operator
from cli.isolation_check.probes import Pair, Probe, Question, Reply
from cli.isolation_check.prompts import Prompts
from cli.isolation_check.verdicts import Evidence
from radixgate.v1 import admin_pb2, inference_pb2

_PATIENCE_S = 10.0
_POLL_S = 0.1


class PublicPrefixCheck:
    name = "public"

    def __init__(self, operator: Operator, pair: Pair, model: str, prompts: Prompts) -> None:
        self.over = pair.over
        self._operator = operator
        self._pair = pair
        self._model = model
        self._prompts = prompts

    def run(self, evidence: Evidence) -> None:
        prefix_id = self._prompts.name(f"public-{self.over.lower()}")
        public = self._prompts.fresh(self._prompts.length // 2)
        calls = self._operator.client.prefixes
        prefix = calls.create(
            admin_pb2.CreatePublicPrefixRequest(
                prefix_id=prefix_id,
                display_name="made by isolation-check",
                model=self._model,
                tokens=inference_pb2.TokenPrompt(token_ids=public),
            )
        )
        try:
            self._look_at_shared(evidence, public, prefix.num_tokens)
        finally:
            self._operator.tidily(f"public prefix {prefix_id}", lambda: calls.delete(prefix_id))
        self._look_at_deleted(evidence, public)

    def _look_at_shared(self, evidence: Evidence, public: tuple[int, ...], num_tokens: int) -> None:
        mine, others = self._pair.mine, self._pair.others
        self._wait_for(mine, public, num_tokens)
        prompt = Question((*public, *self._prompts.fresh()))
        look = Look(evidence, self._prompts)
        look.own(mine, prompt, "a tenant finds its own prompt behind the prefix")
        reply = others.ask(prompt)
        evidence.control(
            "the other tenant finds the prefix",
            f"{found(reply)}, {reply.cached_public} of them of the prefix's {num_tokens}",
            reply.public == num_tokens and 2 * reply.cached_public >= num_tokens,
        )
        evidence.claim("the other tenant finds nothing behind the prefix", *_behind(reply, num_tokens))
        look.own(others, prompt, "the other tenant finds the whole prompt once it has asked itself")

    def _look_at_deleted(self, evidence: Evidence, public: tuple[int, ...]) -> None:
        for probe in (self._pair.mine, self._pair.others):
            prompt = Question((*public, *self._prompts.fresh()))
            look = Look(evidence, self._prompts)
            look.nothing(probe, prompt, "nobody finds the prefix once it is deleted")

    def _wait_for(self, probe: Probe, public: tuple[int, ...], num_tokens: int) -> None:
        """Wait until the gateway that we speak to knows the prefix: with several, not all learn of it at once."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            if probe.ask(Question((*public, *self._prompts.fresh(8)))).public == num_tokens:
                return
            time.sleep(_POLL_S)


def _behind(reply: Reply, num_tokens: int) -> tuple[str, bool]:
    """Say how much was found behind the prefix's end, and whether that is nothing."""
    behind = max(reply.cached - num_tokens, 0)
    return f"{behind} of {reply.prompt_tokens - num_tokens} cached", behind == 0
