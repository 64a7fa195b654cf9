"""What transport costs: requests through the whole stack, as the client sees them and as the engine counts them.

All prompts are cached but for their last tokens, so that a request is decoding and little else. What lies between the
two views of a request is transport: the client, gRPC twice, the gateway. Its processes also take cores from the one
that computes; that shows in the engine's own time and not here, as `step_ms` beside the same step without a stack.
"""

import asyncio
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.gateway_client import GatewayClient, gateway_client
from benchmarks.load import send_all
from benchmarks.stack import running_stack
from benchmarks.workloads import TokenText, Turn, document

_HISTOGRAMS = {
    "request": "radixgate_sequence_seconds",
    "ttft": "radixgate_time_to_first_token_seconds",
    "step": "radixgate_step_seconds",
}
OWN_TOKENS = 100


@dataclass(frozen=True, slots=True)
class Seen:
    """Sums and counts of the engine's histograms, by the names above."""

    sums: dict[str, float]
    counts: dict[str, float]

    def mean_ms_since(self, earlier: "Seen", name: str) -> float:
        """Return the mean in milliseconds of what was counted between two looks."""
        return 1e3 * (self.sums[name] - earlier.sums[name]) / (self.counts[name] - earlier.counts[name])


def read(expositions: Sequence[str]) -> Seen:
    """Add up what the metrics endpoints of all processes said."""
    totals: dict[str, float] = {}
    for exposition in expositions:
        for family in text_string_to_metric_families(exposition):
            for sample in family.samples:
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return Seen(
        {name: totals.get(f"{metric}_sum", 0.0) for name, metric in _HISTOGRAMS.items()},
        {name: totals.get(f"{metric}_count", 0.0) for name, metric in _HISTOGRAMS.items()},
    )


def measure_live(batches: Sequence[int], context: int, output: int, arguments: Sequence[str]) -> dict[str, Any]:
    """Start a stack with `arguments` and return, by number of requests at once, what they took and where."""
    with running_stack(arguments) as stack:
        return asyncio.run(_measure(stack.target, stack.keys, stack.metrics, batches, context, output))


async def _measure(
    target: str, keys: dict[str, str], metrics: Sequence[str], batches: Sequence[int], context: int, output: int
) -> dict[str, Any]:
    tenant = next(iter(keys))
    found: dict[str, Any] = {}
    async with gateway_client(target, keys) as client:
        text = TokenText(await client.token_ids(document(), tenant), seed=0)
        for batch in batches:
            own = min(OWN_TOKENS, context // 2)
            prefix = text.cut(context - own)
            turns = [Turn(tenant, prefix + text.cut(own), output) for _ in range(batch)]
            await send_all(client, turns)  # the prompts are cached from here on
            found[str(batch)] = await _one_batch(client, metrics, turns)
    return found


async def _one_batch(client: GatewayClient, metrics: Sequence[str], turns: Sequence[Turn]) -> dict[str, float]:
    before = await _look(metrics)
    result = await send_all(client, turns)
    after = await _look(metrics)
    client_ms = 1e3 * mean(timing.arrivals[-1].at_s - timing.sent_s for timing in result.timings)
    engine_ms = after.mean_ms_since(before, "request")
    ttft_ms, engine_ttft_ms = 1e3 * mean(t.ttft_s for t in result.timings), after.mean_ms_since(before, "ttft")
    return {
        "request_ms": client_ms,
        "engine_request_ms": engine_ms,
        "transport_ms": client_ms - engine_ms,
        "transport_share": (client_ms - engine_ms) / client_ms,
        "ttft_ms": ttft_ms,
        "transport_of_ttft_ms": ttft_ms - engine_ttft_ms,
        "itl_ms": result.summary()["itl_mean_ms"],
        "step_ms": after.mean_ms_since(before, "step"),
    }


async def _look(metrics: Sequence[str]) -> Seen:
    return read([await asyncio.to_thread(_get, url) for url in metrics])


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        body: bytes = response.read()
    return body.decode()
