"""Redis, and what is kept there beside tenants, limits and registrations."""

from redis.asyncio import Redis

from gateway.config import GatewayConfig
from gateway.identity.audit import RedisAuditLog
from gateway.identity.changes import ChangeWatch
from gateway.identity.extra_keys import ConfiguredSecret, RedisSecret, SecretSource
from gateway.identity.idempotency import Idempotency
from gateway.identity.reach import StoreReach
from gateway.identity.redis_store import connect
from gateway.observer import GatewayObserver
from gateway.rpc.journal import AdminJournal


class SharedStore:
    """One gateway's side of the Redis of its deployment. Everything in a gateway reaches it through `reach`."""

    def __init__(self, config: GatewayConfig, observer: GatewayObserver) -> None:
        """Raises ValueError without an address. Nothing is connected yet."""
        self.client: Redis = connect(config.redis)
        self.reach = StoreReach(self.client, config.redis.timeout_s, observer)
        self.changes = ChangeWatch(self.client, self.reach)
        self.idempotency = Idempotency(self.client, self.reach)
        self.audit = RedisAuditLog(self.client, self.reach)
        self.journal = AdminJournal(self.audit)
        self.secret: SecretSource = (
            ConfiguredSecret(config.extra_key_secret)
            if config.extra_key_secret
            else RedisSecret(self.client, self.reach)
        )
