"""Sends requests on their way, and knows those that are under way."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.config import FailoverConfig
from gateway.dispatch.journey import Journey, JourneyObserver, Order
from gateway.dispatch.pace import Pace
from gateway.dispatch.placing import Placing
from gateway.dispatch.stream import TokenStream
from gateway.errors import GatewayError


@dataclass(frozen=True, slots=True)
class StreamLimits:
    pace: Pace
    max_unread_bytes: int


class Dispatcher:
    """Gives requests to workers. Invariant: `_journeys` are those whose streams have not ended."""

    def __init__(
        self, placing: Placing, config: FailoverConfig, limits: StreamLimits, observer: JourneyObserver
    ) -> None:
        self._placing = placing
        self._config = config
        self._limits = limits
        self._observer = observer
        self._journeys: set[Journey] = set()

    async def begin(self, order: Order) -> TokenStream:
        """Send a request to a worker, for which it may wait. Leave the stream's context, and it is cancelled.

        Raises GatewayError: AdapterChangedError where no worker has the adapter in this revision any more,
        NoWorkerError and OverloadedError where no worker takes requests.
        """

        def make_stream(on_close: Callable[[bool], None]) -> TokenStream:
            return TokenStream(
                on_close,
                pace=self._limits.pace,
                max_unread_bytes=self._limits.max_unread_bytes,
                num_completions=order.generation.sampling.n,
                simulated=order.model.simulated,
            )

        journey = Journey(order, self._placing, self._config, self._observer, make_stream, self._journeys.discard)
        self._journeys.add(journey)
        await journey.begin()
        return journey.stream

    def fail_all(self, error: GatewayError) -> None:
        """End every stream with `error`, whether it is at a worker or moves."""
        for journey in list(self._journeys):
            journey.stream.fail(error)
