"""How many requests lately had the same beginning: what a copy of it at another worker would be good for."""

from collections import OrderedDict
from typing import Final

MAX_REMEMBERED: Final = 65_536


class Popularity:
    """Counts, by the name of the last page that any worker has of a prompt; half is forgotten in each `half_life_s`.

    Each turn of a conversation is known up to another page, so it is alone however long it goes on. Requests behind
    one system prompt are known up to the same one.
    """

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._uses: OrderedDict[bytes, tuple[float, float]] = OrderedDict()  # count and when; used longest ago first

    def __len__(self) -> int:
        return len(self._uses)

    def used(self, name: bytes, now: float) -> float:
        """Another request is known up to this page. Return how many there were, this one included."""
        count, at = self._uses.pop(name, (0.0, now))
        count = 1.0 + count * float(0.5 ** ((now - at) / self._half_life_s))
        self._uses[name] = (count, now)
        if len(self._uses) > MAX_REMEMBERED:
            self._uses.popitem(last=False)
        return count
