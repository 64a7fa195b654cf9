"""Why a request went where it went, for whoever asked: compact, bounded JSON of what was chosen and of moves."""

import json
from collections.abc import Mapping
from typing import Final

MAX_BYTES: Final = 4096
"""Of the text. It travels as a header, and peers may drop headers over 8 kB in all."""


KEY: Final = "radixgate-explain"
"""Of metadata: "1" in a call asks for it, and the trailing metadata have it. Over HTTP it begins with "x-"."""


def if_asked(value: str | None) -> "Explanation | None":
    """Return what a call that says `value` under the key is to be explained in."""
    return Explanation() if value == "1" else None


def never(value: str | None) -> None:
    """Explain nothing, as where an operator has not allowed it: it shows workers, and how busy they are."""


class Explanation:
    """Of one call. Only ASCII, so that it can be a header."""

    def __init__(self) -> None:
        self._entries: list[str] = []
        self._num_bytes = 2
        self._left_out = 0

    def chosen(self, worker: str, why: Mapping[str, object]) -> None:
        """A worker was chosen."""
        self._add({"worker": worker, **why}, {"worker": worker, "shortened": True})

    def moved(self, worker: str, cause: str, sent_tokens: int) -> None:
        """The request has to leave a worker."""
        entry = {"left": worker, "cause": cause, "tokens": sent_tokens}
        self._add(entry, entry)

    def text(self) -> str:
        last = [f'{{"left_out":{self._left_out}}}'] if self._left_out else []
        return f"[{','.join(self._entries + last)}]"

    def _add(self, entry: Mapping[str, object], shortened: Mapping[str, object]) -> None:
        for each in (entry, shortened):
            written = json.dumps(each, separators=(",", ":"), default=str)
            if self._num_bytes + len(written) + 1 <= MAX_BYTES - _LAST_WORDS:
                self._entries.append(written)
                self._num_bytes += len(written) + 1
                return
        self._left_out += 1


_LAST_WORDS: Final = 32  # {"left_out":...}
