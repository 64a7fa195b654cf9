"""What can be set at a gateway. Plain values with bounds; whoever reads configuration files validates them."""

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Interval, Len, Predicate


def is_address(value: str) -> bool:
    """Whether `value` reads HOST:PORT (an IPv6 host in brackets)."""
    host, separator, port = value.rpartition(":")
    return bool(separator and host) and port.isascii() and port.isdigit() and int(port) <= 65535


def is_key_material(value: str) -> bool:
    """Whether `value` can key BLAKE2b and is long enough not to be guessed: 16 to 64 bytes of UTF-8."""
    return 16 <= len(value.encode()) <= 64


Address = Annotated[str, Predicate(is_address)]
Seconds = Annotated[float, Interval(gt=0, le=86_400 * 366)]


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Bounds on what one caller can ask for or hold."""

    # Of one request or response; larger requests get RESOURCE_EXHAUSTED from gRPC itself, without details.
    max_message_bytes: Annotated[int, Interval(ge=65_536, le=1 << 30)] = 4 << 20
    # Calls with a credential, of all callers together.
    max_concurrent_rpcs: Annotated[int, Interval(ge=1)] = 10_000
    # Streams that need no credential (health watches, reflection), of all callers together.
    max_open_streams: Annotated[int, Interval(ge=1)] = 256
    # Further calls of a connection wait in its client.
    max_streams_per_connection: Annotated[int, Interval(ge=1, le=1 << 20)] = 1_000
    max_stop_strings: Annotated[int, Interval(ge=0)] = 16
    max_stop_string_chars: Annotated[int, Interval(ge=1)] = 256
    max_stop_token_ids: Annotated[int, Interval(ge=0)] = 64
    max_logprobs: Annotated[int, Interval(ge=0)] = 20
    # Of one request (`n`).
    max_completions: Annotated[int, Interval(ge=1, le=1024)] = 64
    # Of a JSON schema, of a regular expression, or of all texts of a choice. Workers take at most 256 KiB.
    max_constraint_bytes: Annotated[int, Interval(ge=1, le=262_144)] = 65_536
    max_choices: Annotated[int, Interval(ge=1)] = 256
    max_scope_bytes: Annotated[int, Interval(ge=1)] = 256
    max_request_id_chars: Annotated[int, Interval(ge=1)] = 128
    max_messages: Annotated[int, Interval(ge=1)] = 4096
    # Output of one stream that its reader has not taken yet; beyond it the stream ends.
    max_unread_bytes: Annotated[int, Interval(ge=4096)] = 1 << 20


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The gateway's own gRPC server."""

    # Deadline of a Generate call whose client set none.
    default_deadline_s: Seconds = 600.0
    keepalive_time_s: Seconds = 30.0
    keepalive_timeout_s: Seconds = 10.0
    # Clients may ping this often; who pings more loses the connection.
    min_ping_interval_s: Seconds = 10.0
    # Connections older than this are asked to reconnect (streams on them finish), so that load spreads again.
    max_connection_age_s: Seconds = 1800.0
    # Time that running streams get to finish when the gateway stops.
    drain_s: Annotated[float, Interval(ge=0, le=86_400)] = 30.0
    # Tokens that arrive within this time of the last message wait for its end and share the next message.
    coalesce_s: Annotated[float, Interval(ge=0, le=1)] = 0.004
    # Threads that tokenise prompts beside the event loop. One tenant has at most half of them at a time.
    prompt_threads: Annotated[int, Interval(ge=1, le=256)] = 4


@dataclass(frozen=True, slots=True)
class WorkerLinkConfig:
    """How the gateway keeps its stream to each worker."""

    connect_timeout_s: Seconds = 10.0
    # Workers must permit pings this often, or they cut idle links.
    keepalive_time_s: Seconds = 10.0
    keepalive_timeout_s: Seconds = 5.0
    backoff_initial_s: Seconds = 0.1
    backoff_max_s: Seconds = 5.0


@dataclass(frozen=True, slots=True)
class RedisConfig:
    """Where tenants and keys live. `url` None: whoever starts the gateway provides a server and fills this in."""

    url: str | None = None
    timeout_s: Seconds = 2.0
    max_connections: Annotated[int, Interval(ge=1)] = 64


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """One gateway process."""

    listen: Address = "127.0.0.1:50051"
    workers: tuple[Address, ...] = ("127.0.0.1:50061",)
    # The admin service is served only where a token is set.
    admin_token: Annotated[str, Len(16, 1024)] | None = None
    # Keys the digest of extra keys; one for the whole deployment. None: made once and kept in Redis.
    extra_key_secret: Annotated[str, Predicate(is_key_material)] | None = None
    # Prometheus endpoint; None: no endpoint.
    metrics_listen: Address | None = "127.0.0.1:9464"
    redis: RedisConfig = field(default_factory=RedisConfig)
    limits: GatewayLimits = field(default_factory=GatewayLimits)
    server: ServerConfig = field(default_factory=ServerConfig)
    worker_link: WorkerLinkConfig = field(default_factory=WorkerLinkConfig)
