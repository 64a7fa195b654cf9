"""Ways in which isolation breaks, each by itself, as a proxy before a worker brings them about."""

from hashlib import blake2b

from radixgate.v1 import worker_pb2
from tests.fakes.worker_proxy import Honest


def _key(*parts: str) -> bytes:
    return blake2b("/".join(parts).encode(), digest_size=16).digest()


class OneKeyForAll(Honest):
    """The namespace forgets whose it is."""

    def spoil(self, submit: worker_pb2.Submit) -> None:
        for segment in submit.prompt:
            segment.extra_key = _key(submit.adapter)


class OneKeyPerTenant(Honest):
    """The namespace is the tenant and nothing else: scopes and versions are forgotten."""

    def spoil(self, submit: worker_pb2.Submit) -> None:
        for segment in submit.prompt:
            segment.extra_key = _key(submit.tenant, submit.adapter)


class NoAdapters(Honest):
    """What an adapter computes lies where the base model's lies, whatever the weights."""

    def spoil(self, submit: worker_pb2.Submit) -> None:
        submit.adapter = submit.adapter_revision = ""
        for segment in submit.prompt:
            segment.extra_key = _key(submit.tenant)


class NoBarrier(Honest):
    """What follows a public prefix lies where the prefix lies."""

    def spoil(self, submit: worker_pb2.Submit) -> None:
        if len(submit.prompt) == 2:
            public, own = submit.prompt
            public.token_ids.extend(own.token_ids)
            del submit.prompt[1]


class LastingPrefixes(Honest):
    """A prefix that was public once is so for ever."""

    def __init__(self) -> None:
        super().__init__()
        self._known: list[worker_pb2.PromptSegment] = []

    def spoil(self, submit: worker_pb2.Submit) -> None:
        first = submit.prompt[0]
        if len(submit.prompt) == 2:
            self._known.append(worker_pb2.PromptSegment(extra_key=first.extra_key, token_ids=first.token_ids))
        for prefix in self._known if len(submit.prompt) == 1 else ():
            barrier = len(prefix.token_ids)
            if first.token_ids[:barrier] == prefix.token_ids:
                own = worker_pb2.PromptSegment(extra_key=first.extra_key, token_ids=first.token_ids[barrier:])
                submit.prompt[0].CopyFrom(prefix)
                submit.prompt.append(own)
                return


class TellingTimes(Honest):
    """Cached counts are right, but who asks what anybody has asked gets the answer sooner."""

    def __init__(self, token_s: float) -> None:
        super().__init__(token_s)
        self._asked: set[tuple[int, ...]] = set()

    def pause_s(self, submit: worker_pb2.Submit, admission: worker_pb2.Admission) -> float:
        prompt = tuple(token_id for segment in submit.prompt for token_id in segment.token_ids)
        known = prompt in self._asked
        self._asked.add(prompt)
        return 0.0 if known else super().pause_s(submit, admission)
