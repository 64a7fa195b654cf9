"""Signs of life of one connected worker. Knows no clock: whoever watches says how much time has passed."""

from enum import Enum

from radixgate.v1 import worker_pb2


class Sign(Enum):
    ALIVE = "alive"
    SILENT = "silent"  # it says nothing at all, as a process that hangs or is cut off
    STALLED = "stalled"  # it speaks, and nothing moves although there is work


class Pulse:
    """Of one connection.

    Workers report regularly, also when they have nothing else to say. One that has never reported by itself may be of a
    kind that does not, and is never silent.
    """

    def __init__(self, silence_s: float, stall_s: float) -> None:
        self._silence_s = silence_s
        self._stall_s = stall_s
        self._reports = False
        self._silent_s = 0.0
        self._without_news_s = 0.0  # of sequences, while some of this gateway's are under way
        self._reported_running = 0
        self._reported_stall_s = 0.0
        self._draining = False

    @property
    def closed(self) -> bool:
        """Whether the worker, as it says, is to get no requests."""
        return self._draining or self.stalled

    @property
    def stalled(self) -> bool:
        """Whether the worker itself says so."""
        return self._reported_stall_s > self._stall_s

    def heard(self, message: worker_pb2.ConnectResponse) -> None:
        """The worker has said something."""
        self._silent_s = 0.0
        if message.outputs:
            self._without_news_s = 0.0
        if not message.HasField("load"):
            return
        load = message.load
        self._reports = self._reports or not message.outputs
        self._reported_running = load.running_sequences
        self._reported_stall_s = load.stalled_s
        self._draining = load.draining

    def passed(self, seconds: float, begun: int) -> Sign:
        """So much time has passed in which messages could have been heard; of this gateway's sequences `begun` have
        had news and have not ended: those compute, and the next news are due.
        """
        self._silent_s = self._silent_s + seconds if self._reports else 0.0
        self._without_news_s = self._without_news_s + seconds if begun and self._reported_running else 0.0
        if self._silent_s > self._silence_s:
            return Sign.SILENT
        if self.stalled:
            return Sign.STALLED
        if self._without_news_s > self._stall_s:
            self._without_news_s = 0.0
            return Sign.STALLED
        return Sign.ALIVE
