"""What the client of a request has got so far, whoever computed it, and what another worker adds to that.

A worker goes on with completions of which it is told the tokens. Where one completion has tokens and another has none
yet, there is no way to say so, and the request begins again: it is computed as the first time, so that what comes
again is what was sent, and is left out.
"""

from array import array
from collections.abc import Sequence

from radixgate.v1 import worker_pb2


class DivergedError(Exception):
    """A request that began again has other tokens than the first time."""


class Progress:
    """Of one request. Invariant: what is remembered is exactly what was passed on."""

    def __init__(self, num_completions: int) -> None:
        self.unfinished = set(range(num_completions))
        self.admitted = False
        self.prompt_logprobs = 0
        self._token_ids = [array("i") for _ in range(num_completions)]
        self._num_chars = [0] * num_completions

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self._token_ids))

    @property
    def begun(self) -> bool:
        """Whether anything of it was passed on that a worker would tell again."""
        return self.prompt_logprobs > 0 or self.num_tokens > 0

    def passed_on(self, output: worker_pb2.SequenceOutput) -> None:
        """This much more goes to the client, of a completion that had not ended."""
        self._token_ids[output.index].extend(output.token_ids)
        self._num_chars[output.index] += len(output.text)
        self.prompt_logprobs += len(output.prompt_logprobs)
        self.admitted = self.admitted or output.HasField("admission")
        if output.WhichOneof("end") is not None:
            self.unfinished.discard(output.index)

    def continued(self) -> list[worker_pb2.ContinuedCompletion]:
        """Return what a worker needs to go on; nothing where it has to begin."""
        if any(not self._token_ids[index] for index in self.unfinished):
            return []
        return [
            worker_pb2.ContinuedCompletion(index=index, token_ids=self._token_ids[index])
            for index in sorted(self.unfinished)
        ]

    def only_tokens(self) -> Sequence[int]:
        """Return the tokens of the one completion that goes on; none where there are several."""
        return self._token_ids[next(iter(self.unfinished))] if len(self.unfinished) == 1 else ()

    def again(self) -> "Again":
        """Return what leaves out, of a request that begins again, what its client has."""
        return Again([array("i", each) for each in self._token_ids], list(self._num_chars), self.prompt_logprobs)


class Again:
    """Of one request that begins again at one worker: what is still to be left out."""

    def __init__(self, token_ids: "list[array[int]]", num_chars: list[int], prompt_logprobs: int) -> None:
        self._token_ids = token_ids
        self._num_chars = num_chars
        self._prompt_logprobs = prompt_logprobs

    def leave_out(self, output: worker_pb2.SequenceOutput) -> None:
        """Take from an output what the client has. Raises DivergedError where it is something else."""
        had = self._token_ids[output.index]
        num_tokens = min(len(had), len(output.token_ids))
        if list(had[:num_tokens]) != output.token_ids[:num_tokens]:
            raise DivergedError
        del had[:num_tokens]
        del output.token_ids[:num_tokens]
        del output.logprobs[:num_tokens]
        num_chars = min(self._num_chars[output.index], len(output.text))
        self._num_chars[output.index] -= num_chars
        output.text = output.text[num_chars:]
        num_logprobs = min(self._prompt_logprobs, len(output.prompt_logprobs))
        self._prompt_logprobs -= num_logprobs
        del output.prompt_logprobs[:num_logprobs]
