"""How long the tokens of a stream wait for further ones before they are sent."""


class Pace:
    """One for all streams of a gateway. Belongs to the event loop. Invariant: `num_streams` is those that are open.

    A message costs the gateway some tens of microseconds whatever is in it. With few streams it can afford one for each
    token; the more there are, the longer each of them collects, so that all together stay near `messages_per_s`, until
    `longest_s` is what readers would notice. What comes slower than that is not held up at all.
    """

    def __init__(self, shortest_s: float, longest_s: float, messages_per_s: float) -> None:
        self._shortest_s = shortest_s
        self._longest_s = max(shortest_s, longest_s)
        self._messages_per_s = messages_per_s
        self.num_streams = 0

    @property
    def window_s(self) -> float:
        """The time between two messages of a stream whose tokens come faster."""
        return min(self._longest_s, max(self._shortest_s, self.num_streams / self._messages_per_s))

    def opened(self) -> None:
        self.num_streams += 1

    def closed(self) -> None:
        self.num_streams -= 1
