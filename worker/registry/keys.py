"""What a worker writes into Redis, and nothing else of it; `gateway.dispatch.registrations` reads it.

    {radixgate}:worker:ID          hash     incarnation, address, document (JSON of WorkerRegistration); expires
    {radixgate}:workers            zset     ID -> when its entry expires, milliseconds by Redis' clock
    {radixgate}:workers-changed    zset     ID -> the number of its last change
    {radixgate}:workers-number     string   the number of the last change of all: it only ever rises

All keys begin with `{radixgate}:worker`, so that a user of Redis can be given these and no others.
"""

from typing import Final

PREFIX: Final = "{radixgate}:"
ENTRY: Final = PREFIX + "worker:"
WORKERS: Final = PREFIX + "workers"
CHANGED: Final = PREFIX + "workers-changed"
NUMBER: Final = PREFIX + "workers-number"

# What a user of Redis that is for workers alone has to be allowed, beside these keys.
COMMANDS: Final = (
    "+hello", "+auth", "+client|setinfo", "+client|setname", "+select", "+ping", "+evalsha", "+script|load", "+time",
    "+get", "+set", "+del", "+hget", "+hmget", "+hset", "+pexpire", "+zadd", "+zrem", "+zscore",
)  # fmt: skip

# A number is the time where that is later than the last number: it also rises over an emptied database. One that is
# none, or too large to rise, counts as 0.
_COMMON: Final = """
local entry, workers, changed, numbers = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local function now_us()
    local time = redis.call('TIME')
    return time[1] * 1000000 + time[2]
end

local function next_number()
    local last = tonumber(redis.call('GET', numbers) or '0')
    local number = math.max(now_us(), last and last < 2 ^ 53 and last + 1 or 0)
    redis.call('SET', numbers, string.format('%.0f', number))
    return string.format('%.0f', number)
end
"""

# ARGV: id, incarnation, address, document, milliseconds to live, 1 where this incarnation has not had the entry yet.
# Returns nothing where the entry is this incarnation's now, else who has it: incarnation and address. One that begins
# takes the entry of one with the same address: two cannot listen there, so that one has ended.
REGISTER: Final = (
    _COMMON
    + """
local holder, where = unpack(redis.call('HMGET', entry, 'incarnation', 'address'))
if holder and holder ~= ARGV[2] and not (ARGV[6] == '1' and where == ARGV[3]) then
    return {holder, where or ''}
end
local before = redis.call('HGET', entry, 'document')
redis.call('HSET', entry, 'incarnation', ARGV[2], 'address', ARGV[3], 'document', ARGV[4])
redis.call('PEXPIRE', entry, ARGV[5])
redis.call('ZADD', workers, string.format('%.0f', math.floor(now_us() / 1000) + tonumber(ARGV[5])), ARGV[1])
if before ~= ARGV[4] or not redis.call('ZSCORE', changed, ARGV[1]) then
    redis.call('ZADD', changed, next_number(), ARGV[1])
end
return {}
"""
)

# ARGV: id, incarnation. Another incarnation's entry stays.
LEAVE: Final = (
    _COMMON
    + """
if redis.call('HGET', entry, 'incarnation') ~= ARGV[2] then return 0 end
redis.call('DEL', entry)
redis.call('ZREM', workers, ARGV[1])
redis.call('ZREM', changed, ARGV[1])
next_number()
return 1
"""
)


def keys_of(worker_id: str) -> list[str]:
    """Return the keys of both scripts."""
    return [ENTRY + worker_id, WORKERS, CHANGED, NUMBER]
