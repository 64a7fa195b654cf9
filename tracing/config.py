"""Settings of traces, for gateways and workers alike."""

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from annotated_types import Interval, Predicate


def is_otlp_endpoint(value: str) -> bool:
    """Whether `value` reads http://HOST:PORT or https://HOST:PORT."""
    try:
        url = urlsplit(value)
        port = url.port  # raises ValueError where it is no port
    except ValueError:
        return False
    bare = url.path in {"", "/"} and not (url.query or url.fragment or url.username)
    return url.scheme in {"http", "https"} and bool(url.hostname) and port is not None and bare


OtlpEndpoint = Annotated[str, Predicate(is_otlp_endpoint)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingConfig:
    """Without an `endpoint` nothing is recorded. What else a collector wants, OTEL_EXPORTER_OTLP_* say."""

    # Where OTLP over gRPC is received, as http://collector:4317. https: with TLS.
    endpoint: OtlpEndpoint | None = None
    # Share of the requests that are recorded, drawn at random in gateways.
    sample_ratio: Annotated[float, Interval(ge=0.0, le=1.0)] = 0.05
    # Requests beyond that share which each tenant can have recorded, by the sampled flag of its `traceparent`; in each
    # gateway. 0: the flag says nothing.
    asked_per_minute: Annotated[int, Interval(ge=0, le=60_000)] = 10
