"""Names of what quotas and usage keep in Redis.

All carry the hash tag {radixgate}, so that each script finds its keys on one node of a Redis Cluster:

    {radixgate}:quota:ID:requests    hash   second -> requests admitted in it
    {radixgate}:quota:ID:tokens      hash   second -> tokens admitted in it
    {radixgate}:quota:ID:running     zset   leases of requests that run -> when they expire (microseconds)
    {radixgate}:quota:ID:line        zset   tickets of requests that wait -> their turn
    {radixgate}:quota:ID:tickets     zset   the same tickets -> when they expire
    {radixgate}:usage:ID:YYYYMMDD    hash   JSON [model, adapter, count] -> number
    {radixgate}:usage-days:ID        set    the days that there is usage of
    {radixgate}:usage-purged:ID      string when the last tenant of this id was made whose usage was purged (ms)
    {radixgate}:gateways             zset   gateways that live -> when they are taken for dead (microseconds)
    {radixgate}:gateway:INCARNATION  hash   batch: the last batch of settlements applied; admissions: how many
"""

from gateway.identity.redis_store import PREFIX

GATEWAYS = PREFIX + "gateways"


def requests(tenant: str) -> str:
    return f"{PREFIX}quota:{tenant}:requests"


def tokens(tenant: str) -> str:
    return f"{PREFIX}quota:{tenant}:tokens"


def running(tenant: str) -> str:
    return f"{PREFIX}quota:{tenant}:running"


def line(tenant: str) -> str:
    return f"{PREFIX}quota:{tenant}:line"


def tickets(tenant: str) -> str:
    return f"{PREFIX}quota:{tenant}:tickets"


def usage(tenant: str, day: str) -> str:
    return f"{PREFIX}usage:{tenant}:{day}"


def usage_days(tenant: str) -> str:
    return f"{PREFIX}usage-days:{tenant}"


def usage_purged(tenant: str) -> str:
    return f"{PREFIX}usage-purged:{tenant}"


def gateway(incarnation: str) -> str:
    return f"{PREFIX}gateway:{incarnation}"


def quota(tenant: str) -> list[str]:
    """Return all that limits keep of a tenant."""
    return [requests(tenant), tokens(tenant), running(tenant), line(tenant), tickets(tenant)]
