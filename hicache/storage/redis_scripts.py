"""What Redis itself does for the pages, atomically, in Lua. Knows the keys; the pages' contents pass it by.

A member is the 16 bytes of a page's group and the 16 bytes of the page. All keys carry one hash tag, so that they lie
on one node of a cluster, and all are built from the prefix, KEYS[1]:

    PREFIX page:MEMBER    string   the page in its frame; expires when nobody used it for the time to live
    PREFIX used           zset     members by time of last use, microseconds
    PREFIX sizes          hash     member -> bytes, and `total`: their sum
    PREFIX group:GROUP    set      the members of a group

A page can vanish from under its entry (Redis drops what expired, or what its own memory limit wants): `touch` notices
that, and `put` forgets whatever is older than the time to live.

Redis refuses a script on a full server at its first command that could need memory, unless it has written before: all
but `put` begin with a command that needs none, so that a full server can still be read and emptied.
"""

from typing import Final

# Times are strictly increasing, even where the clock is not: order of use must not depend on it.
_COMMON: Final = """
local prefix = KEYS[1]
local used, sizes = prefix .. 'used', prefix .. 'sizes'

local function page_of(member) return prefix .. 'page:' .. member end
local function group_of(member) return prefix .. 'group:' .. string.sub(member, 1, 16) end

local function next_use_us()
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    local last = redis.call('ZREVRANGE', used, 0, 0, 'WITHSCORES')
    if last[2] and tonumber(last[2]) >= now then now = tonumber(last[2]) + 1 end
    return now
end

local function score_of(us) return string.format('%.0f', us) end

local function forget(member)
    redis.call('UNLINK', page_of(member))
    redis.call('SREM', group_of(member), member)
    redis.call('ZREM', used, member)
    local size = redis.call('HGET', sizes, member)
    if size then
        redis.call('HDEL', sizes, member)
        redis.call('HINCRBY', sizes, 'total', -size)
    end
end

local function held()
    local pages = redis.call('ZCARD', used)
    if pages == 0 then redis.call('DEL', sizes) end
    return pages, tonumber(redis.call('HGET', sizes, 'total') or '0')
end
"""

# ARGV: max_bytes, ttl_ms, the most entries to drop in one call, then member and size by turns.
# Returns: of these members, how many are held; dropped; pages; bytes; 1 when there is more to drop.
PUT: Final = (
    _COMMON
    + """
local max_bytes, ttl_ms, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now = next_use_us()
for i = 4, #ARGV, 2 do
    local member, size = ARGV[i], tonumber(ARGV[i + 1])
    local old = tonumber(redis.call('HGET', sizes, member) or '0')
    redis.call('HSET', sizes, member, size)
    redis.call('HINCRBY', sizes, 'total', size - old)
    redis.call('ZADD', used, score_of(now + #ARGV - i), member)
    redis.call('SADD', group_of(member), member)
end
local _, total = held()
local dropped = 0
local expired_us = now - ttl_ms * 1000
local more = 0
while true do
    local oldest = redis.call('ZRANGE', used, 0, 0, 'WITHSCORES')
    if not oldest[1] or (total <= max_bytes and tonumber(oldest[2]) > expired_us) then break end
    if dropped == most then more = 1; break end
    forget(oldest[1])
    dropped = dropped + 1
    total = tonumber(redis.call('HGET', sizes, 'total') or '0')
end
local kept = 0
for i = 4, #ARGV, 2 do
    if redis.call('ZSCORE', used, ARGV[i]) then kept = kept + 1 end
end
local pages, bytes = held()
return {kept, dropped, pages, bytes, more}
"""
)

# ARGV: ttl_ms, then members. Returns pages, bytes, then 1 or 0 for each member: whether its page is there.
TOUCH: Final = (
    _COMMON
    + """
local now = next_use_us()
local answer = {0, 0}
for i = 2, #ARGV do
    local member = ARGV[i]
    if redis.call('PEXPIRE', page_of(member), ARGV[1]) == 1 then
        redis.call('ZADD', used, 'XX', score_of(now + #ARGV - i), member)
        answer[i + 1] = 1
    else
        forget(member)
        answer[i + 1] = 0
    end
end
answer[1], answer[2] = held()
return answer
"""
)

# ARGV: members. Returns pages, bytes.
FORGET: Final = (
    _COMMON
    + """
for i = 1, #ARGV do forget(ARGV[i]) end
local pages, bytes = held()
return {pages, bytes}
"""
)

# ARGV: the group, the most entries to drop in one call. Returns dropped, pages, bytes; fewer than that: all is done.
REMOVE_GROUP: Final = (
    _COMMON
    + """
local members = redis.call('SPOP', group_of(ARGV[1]), ARGV[2])
for i = 1, #members do forget(members[i]) end
local pages, bytes = held()
return {#members, pages, bytes}
"""
)
