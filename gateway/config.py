"""What can be set at a gateway. Plain values with bounds; whoever reads configuration files validates them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal
from urllib.parse import urlsplit

from annotated_types import Interval, Len, Predicate

from gateway.policy import TenantPolicy, is_tenant_id


def is_address(value: str) -> bool:
    """Whether `value` reads HOST:PORT (an IPv6 host in brackets)."""
    host, separator, port = value.rpartition(":")
    return bool(separator and host) and port.isascii() and port.isdigit() and int(port) <= 65535


def is_key_material(value: str) -> bool:
    """Whether `value` can key BLAKE2b and is long enough not to be guessed: 16 to 64 bytes of UTF-8."""
    return 16 <= len(value.encode()) <= 64


def is_trustworthy_url(value: str) -> bool:
    """Whether nobody on the way to `value` can answer in its place."""
    try:
        url = urlsplit(value)
    except ValueError:
        return False
    here = url.hostname in {"localhost", "127.0.0.1", "::1"}
    return bool(url.hostname) and (url.scheme == "https" or (url.scheme == "http" and here))


Address = Annotated[str, Predicate(is_address)]
Seconds = Annotated[float, Interval(gt=0, le=86_400 * 366)]
# Of signed tokens: those with a public key only, so that nobody signs with what verifies.
Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]  # fmt: skip


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
    # With many streams they wait longer, so that all together make about this many messages a second ...
    messages_per_s: Annotated[float, Interval(ge=1)] = 3_000.0
    # ... and never longer than this.
    longest_coalesce_s: Annotated[float, Interval(ge=0, le=1)] = 0.1
    # Threads that tokenise prompts beside the event loop. One tenant has at most half of them at a time.
    prompt_threads: Annotated[int, Interval(ge=1, le=256)] = 4


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """TLS of the gateway's own servers, gRPC and HTTP. Without a `cert_file` they speak plain text."""

    # PEM: the server's certificate with its chain, and its key. Rotated files are used for new connections.
    cert_file: str | None = None
    key_file: str | None = None
    # PEM: authorities of client certificates. With it every client must have a certificate of theirs.
    client_ca_file: str | None = None
    # Tenants by the common name, DNS name or URI in a client's certificate: calls without `authorization` are theirs.
    client_tenants: Mapping[str, str] = field(default_factory=dict)
    # What such a name begins with where the rest is the tenant's id, as in "spiffe://example.org/tenant/".
    client_tenant_prefix: str | None = None
    # How often the files are looked at.
    reload_s: Seconds = 10.0

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("tls.cert_file and tls.key_file belong together")
        if self.client_ca_file is not None and self.cert_file is None:
            raise ValueError("tls.client_ca_file needs tls.cert_file")
        if (self.client_tenants or self.client_tenant_prefix is not None) and self.client_ca_file is None:
            raise ValueError("tls.client_tenants and tls.client_tenant_prefix need tls.client_ca_file")
        if self.client_tenant_prefix == "":
            raise ValueError("tls.client_tenant_prefix is empty: any certificate would name any tenant")


@dataclass(frozen=True, slots=True)
class JwtConfig:
    """Bearer tokens of an identity provider, beside API keys. Without `jwks_file` and `jwks_url` there are none."""

    # The provider's public keys: a JSON Web Key Set. A file is read again when it changes.
    jwks_file: str | None = None
    jwks_url: str | None = None
    # What tokens must say: both are required with either source.
    issuer: str | None = None
    audience: str | None = None
    algorithms: Annotated[tuple[Algorithm, ...], Len(1)] = ("RS256", "ES256", "EdDSA")
    # Claims that hold the tenant's id and, as lists, what the token may use. Dots lead into objects.
    tenant_claim: Annotated[str, Len(1)] = "tenant"
    models_claim: Annotated[str, Len(1)] = "models"
    adapters_claim: Annotated[str, Len(1)] = "adapters"
    leeway_s: Annotated[float, Interval(ge=0, le=300)] = 5.0
    refresh_s: Seconds = 300.0

    def __post_init__(self) -> None:
        if self.jwks_file is not None and self.jwks_url is not None:
            raise ValueError("jwt.jwks_file and jwt.jwks_url: set one of them")
        if self.jwks_url is not None and not is_trustworthy_url(self.jwks_url):
            raise ValueError("jwt.jwks_url must begin with https:// (http:// is for this machine only)")
        if self.enabled and (self.issuer is None or self.audience is None):
            raise ValueError("jwt.issuer and jwt.audience are required where tokens are accepted")

    @property
    def enabled(self) -> bool:
        return self.jwks_file is not None or self.jwks_url is not None


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """The OpenAI-compatible HTTP API."""

    # None: no HTTP.
    listen: Address | None = "127.0.0.1:8000"
    max_body_bytes: Annotated[int, Interval(ge=1024, le=1 << 30)] = 4 << 20
    max_connections: Annotated[int, Interval(ge=1)] = 10_000
    # A client that takes longer to send a request's head, or its body, loses the connection.
    head_timeout_s: Seconds = 10.0
    body_timeout_s: Seconds = 30.0
    # Connections that wait for another request.
    keep_alive_s: Seconds = 75.0
    # A client that takes nothing of its answer for this long loses the connection.
    write_timeout_s: Seconds = 60.0


@dataclass(frozen=True, slots=True)
class QuotaConfig:
    """How limits are kept; which ones is what policies say."""

    # What a token costs of a tenant's tokens per minute, where it was found in the cache or only counted.
    cached_token_cost: Annotated[float, Interval(ge=0, le=1)] = 1.0
    counted_token_cost: Annotated[float, Interval(ge=0, le=1)] = 0.0
    # A gateway that has died gives back what its requests held after this time.
    lease_s: Annotated[float, Interval(ge=1, le=3600)] = 15.0
    # The longest that a request waits for one of its tenant's to end.
    max_queue_s: Seconds = 60.0
    # When Redis is away. local: this gateway's part of each limit; refuse: UNAVAILABLE; allow: no limits.
    store_away: Literal["local", "refuse", "allow"] = "local"
    # For how long tenants and keys that are known go on to be when Redis is away.
    max_stale_s: Seconds = 86_400.0
    # Days of usage that are kept.
    usage_days: Annotated[int, Interval(ge=1, le=36_600)] = 400


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """Policies by configuration. What the admin API sets for a tenant is stronger."""

    default: TenantPolicy = field(default_factory=TenantPolicy)
    tenants: Mapping[Annotated[str, Predicate(is_tenant_id)], TenantPolicy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerLinkTlsConfig:
    """TLS towards the workers. Without a `ca_file` links are plain text. All of them speak TLS, or none."""

    # PEM: authorities of the workers' certificates.
    ca_file: str | None = None
    # PEM: what the gateway shows, to workers that require certificates of their clients.
    cert_file: str | None = None
    key_file: str | None = None
    # The name in the certificate of every worker. None: the host in its address.
    server_name: Annotated[str, Len(1)] | None = None

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("worker_link.tls.cert_file and worker_link.tls.key_file belong together")
        if self.ca_file is None and (self.cert_file is not None or self.server_name is not None):
            raise ValueError("worker_link.tls.cert_file and worker_link.tls.server_name need worker_link.tls.ca_file")


@dataclass(frozen=True, slots=True)
class WorkerLinkConfig:
    """How the gateway keeps its stream to each worker."""

    connect_timeout_s: Seconds = 10.0
    # Workers must permit pings this often, or they cut idle links.
    keepalive_time_s: Seconds = 10.0
    keepalive_timeout_s: Seconds = 5.0
    backoff_initial_s: Seconds = 0.1
    backoff_max_s: Seconds = 5.0
    # A worker that says nothing for so long has hung, or is cut off: its streams move. Workers report every second.
    silence_s: Seconds = 5.0
    # So has one whose engine has not moved for so long although it has work.
    stall_s: Seconds = 60.0
    # So many failures of a worker in a row, and it gets no requests for that long; then one, to see.
    breaker_failures: Annotated[int, Interval(ge=1)] = 5
    breaker_open_s: Seconds = 5.0
    tls: WorkerLinkTlsConfig = field(default_factory=WorkerLinkTlsConfig)


@dataclass(frozen=True, slots=True)
class RoutingConfig:
    """Which worker gets a request."""

    policy: Literal["cache_aware", "round_robin", "least_loaded", "session"] = "cache_aware"
    # Pages that are remembered of all workers together; beyond it those used longest ago are forgotten.
    max_index_pages: Annotated[int, Interval(ge=1024)] = 4_000_000
    # Callers that ask for it are told why their worker was chosen. It shows them workers, and how busy they are.
    explain: bool = False
    # A request that would wait longer than this at every worker is refused, and told when to come again. None: never.
    max_expected_wait_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class FailoverConfig:
    """What becomes of requests whose worker fails."""

    # How often one request may go on, or begin again, on another worker. 0: it ends with its worker. Workers that shut
    # down in order do not count, and neither do full ones where its client has tokens already.
    max_moves: Annotated[int, Interval(ge=0, le=100)] = 3
    # How long a request waits for a worker where there is none at the moment.
    wait_for_worker_s: Annotated[float, Interval(ge=0, le=3600)] = 5.0
    # Between attempts, doubled each time, of which a random part is waited.
    backoff_initial_s: Seconds = 0.05
    backoff_max_s: Seconds = 1.0


@dataclass(frozen=True, slots=True)
class DiscoveryConfig:
    """Where the gateway learns which workers there are.

    static: they are `gateway.workers`. redis: they are those that register in the Redis of the deployment.
    """

    source: Literal["static", "redis"] = "static"
    # How often the gateway looks who is registered.
    poll_s: Seconds = 1.0
    # A worker that is neither connected nor registered for so long is forgotten.
    forget_s: Seconds = 30.0
    # With redis: workers that do not register, beside those that do.
    extra_workers: tuple[Address, ...] = ()

    def __post_init__(self) -> None:
        if self.extra_workers and self.source == "static":
            raise ValueError('discovery.extra_workers goes with source = "redis"; otherwise all are in gateway.workers')


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
    # Further admin tokens by the operator's name, which the audit log shows; the one above is "admin".
    operators: Mapping[str, Annotated[str, Len(16, 1024)]] = field(default_factory=dict)
    # Keys the digest of extra keys; one for the whole deployment. None: made once and kept in Redis.
    extra_key_secret: Annotated[str, Predicate(is_key_material)] | None = None
    # Prometheus endpoint; None: no endpoint.
    metrics_listen: Address | None = "127.0.0.1:9464"
    # One JSON line for each request that used something is appended to this file ("-": standard output). None: no log.
    usage_log: Annotated[str, Len(1)] | None = None
    # TOML with the same content as the section `policies`, which then must be empty.
    policy_file: str | None = None
    policies: PolicyConfig = field(default_factory=PolicyConfig)
    redis: RedisConfig = field(default_factory=RedisConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    jwt: JwtConfig = field(default_factory=JwtConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    quota: QuotaConfig = field(default_factory=QuotaConfig)
    limits: GatewayLimits = field(default_factory=GatewayLimits)
    server: ServerConfig = field(default_factory=ServerConfig)
    worker_link: WorkerLinkConfig = field(default_factory=WorkerLinkConfig)
    discovery: DiscoveryConfig = field(default_factory=DiscoveryConfig)
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    failover: FailoverConfig = field(default_factory=FailoverConfig)

    def __post_init__(self) -> None:
        if self.admin_token is not None and "admin" in self.operators:
            raise ValueError('operators."admin" is the name of gateway.admin_token; take another')
        if any(not 1 <= len(name) <= 64 or not name.isprintable() for name in self.operators):
            raise ValueError("operators have names of 1 to 64 printable characters")
        tokens = [*self.operators.values(), *([self.admin_token] if self.admin_token else [])]
        if len(set(tokens)) < len(tokens):
            raise ValueError("two operators have the same token: the audit log could not tell them apart")
