"""Who may call, and by what they are known."""

from gateway.assembly.store import SharedStore
from gateway.config import GatewayConfig, JwtConfig, TlsConfig
from gateway.identity.authenticator import AdminAuthenticator, TenantAuthenticator
from gateway.identity.by_form import ByForm
from gateway.identity.certificates import CertificateAuthenticator
from gateway.identity.changes import ChangeLog
from gateway.identity.directory import RedisDirectory
from gateway.identity.key_ring import KeyRing, from_file, from_url
from gateway.identity.named_tenants import NamedTenants
from gateway.identity.redis_keys import RedisKeyStore
from gateway.identity.redis_tenants import RedisTenantStore
from gateway.identity.remembering import RememberingDirectory
from gateway.identity.sessions import Sessions
from gateway.identity.terms import TermsBook, TermsNow
from gateway.identity.tokens import TokenAuthenticator
from gateway.identity.upkeep import AGAIN_S, Upkeep
from gateway.observer import GatewayObserver
from transport.pems import PemFiles
from transport.server import ServerTls


class Identity:
    """Tenants, operators and their credentials. Streams of those that are no longer good are ended."""

    def __init__(self, config: GatewayConfig, store: SharedStore, observer: GatewayObserver) -> None:
        """Raises ValueError for a file with signing keys that has none."""
        self.tenants = RedisTenantStore(store.client, store.reach)
        self.keys = RedisKeyStore(store.client, store.reach)
        self.sessions = Sessions()
        self.terms = TermsBook(config.policies)
        self.key_ring = _key_ring(config.jwt, observer)
        directory = RememberingDirectory(RedisDirectory(store.client, store.reach), config.quota.max_stale_s)
        self.terms_now = TermsNow(self.terms, directory)
        upkeep = Upkeep(ChangeLog(store.client, store.reach), directory, self.sessions)
        store.changes.when_changed(upkeep.follow, AGAIN_S)
        named = NamedTenants(directory, self.terms, observer)
        by_name, prefix = config.tls.client_tenants, config.tls.client_tenant_prefix
        keys = TenantAuthenticator(directory, self.terms, observer)
        tokens = TokenAuthenticator(config.jwt, self.key_ring, named, observer) if self.key_ring else None
        certificates = CertificateAuthenticator(by_name, prefix, named, observer) if by_name or prefix else None
        self.callers = ByForm(keys, tokens, certificates)
        # Over HTTP a browser would add its certificate to the requests of any page.
        self.bearers = ByForm(keys, tokens)
        tokens_of_operators = admin_tokens(config)
        self.operators = AdminAuthenticator(tokens_of_operators, observer) if tokens_of_operators else None


def admin_tokens(config: GatewayConfig) -> dict[str, str]:
    """Return the admin tokens by the operator's name."""
    return {**({"admin": config.admin_token} if config.admin_token else {}), **config.operators}


def server_tls(config: TlsConfig, observer: GatewayObserver) -> ServerTls | None:
    """Raises ValueError, naming the file, for what cannot serve."""
    if config.cert_file is None or config.key_file is None:
        return None
    return ServerTls(PemFiles(config.cert_file, config.key_file, config.client_ca_file), config.reload_s, observer)


def _key_ring(config: JwtConfig, observer: GatewayObserver) -> KeyRing | None:
    """An identity provider may come later, like Redis and workers; a file is there or wrong."""
    if config.jwks_url is not None:
        return KeyRing(from_url(config.jwks_url), config.algorithms, config.refresh_s, observer)
    if config.jwks_file is None:
        return None
    ring = KeyRing(from_file(config.jwks_file), config.algorithms, config.refresh_s, observer)
    try:
        ring.load()
    except (OSError, ValueError) as error:
        raise ValueError(f"gateway.jwt.jwks_file: {config.jwks_file}: {error}") from error
    return ring
