"""What all gateways of a deployment share lies in Redis: how to reach it, and where tenants and keys are.

All keys carry the hash tag {radixgate}, so that each script finds its keys on one node of a Redis Cluster:

    {radixgate}:tenants              zset   tenant ids, all with score 0: ordered by id
    {radixgate}:tenant:ID            hash   display_name, created_ms, cache_version, mark, [state],
                                            [policy.FIELD (JSON)]
    {radixgate}:cache-versions:ID    hash   adapter -> bumps of this adapter
    {radixgate}:deleted-tenants      hash   ID -> the highest cache version that was in use under it
    {radixgate}:api-key:KEYID        hash   tenant_id, secret_hash (hex), display_name, created_ms, [revoked_ms],
                                            [expires_ms], [models (JSON)], [adapters (JSON)], [replaces]
    {radixgate}:api-keys:ID          zset   the tenant's key ids by time of creation, and by number within one
    {radixgate}:changes, :changed           see `gateway.identity.changes`
    {radixgate}:request:...          hash   see `gateway.identity.idempotency`
    {radixgate}:audit, ...           stream see `gateway.identity.audit`
    {radixgate}:extra-key-secret     string (hex) see `gateway.identity.extra_keys`
"""

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError as RedisConnectionError

from gateway.config import RedisConfig

PREFIX = "{radixgate}:"


def connect(config: RedisConfig) -> Redis:
    """Return a client that connects when first used and again whenever the server is back.

    It waits without an end: how long, is the business of `StoreReach`, which all calls go through.
    """
    if config.url is None:
        raise ValueError("redis.url is not set")
    pool = BlockingConnectionPool.from_url(
        config.url,
        decode_responses=True,
        max_connections=config.max_connections,
        timeout=None,
        socket_timeout=None,
        socket_connect_timeout=None,
        # Once more at once: a connection that died while idle is noticed only when it is used.
        retry=Retry(ConstantBackoff(0), 1, supported_errors=(RedisConnectionError,)),
    )
    return Redis.from_pool(pool)
