"""The scripts that decide and settle inside Redis, where nothing comes between reading and writing.

Their clock is the server's, so gateways' clocks need not agree. Times are microseconds since the epoch.
"""

SERVER_CLOCK = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
"""

# KEYS: requests, tokens, running, line, tickets, the gateway's own.
# ARGV: lease, limits of requests, tokens, places and line (-1: none), tokens asked for, how long a lease lasts,
#   whether the call waits already (1 or 0), how long the gateway's own hash is kept (s), how leases of the same gateway
#   begin.
# Returns {'admitted', second, number}, {'admitted', 0, 0} for a call that was admitted before, {'queued', ahead}, or
#   {'refused', limit, microseconds until it opens}.
ADMIT = """
local second = math.floor(now / 1000000)
local lease, places, line_room = ARGV[1], tonumber(ARGV[4]), tonumber(ARGV[5])
local lease_us, waits = tonumber(ARGV[7]), ARGV[8] == '1'

local function opens_in(key, amount, limit)
    local fields = redis.call('HGETALL', key)
    local buckets, excess = {}, amount - limit
    for i = 1, #fields, 2 do
        local at, used = tonumber(fields[i]), tonumber(fields[i + 1])
        if at < second - 60 or at > second then redis.call('HDEL', key, fields[i]) end
        if at > second then  -- the clock was set back: what it says was used later counts as used now
            redis.call('HINCRBY', key, second, used)
            at = second
        end
        if at >= second - 60 then
            buckets[#buckets + 1] = {at, used}
            excess = excess + used
        end
    end
    if excess <= 0 then return 0 end
    table.sort(buckets, function(a, b) return a[1] < b[1] end)
    for _, bucket in ipairs(buckets) do
        excess = excess - bucket[2]
        if excess <= 0 then return (bucket[1] + 61) * 1000000 - now end
    end
    return -1
end

local function leave_line()
    redis.call('ZREM', KEYS[4], lease)
    redis.call('ZREM', KEYS[5], lease)
end

-- Return how many come before a call that waits. Of each gateway only the first in line asks. If others of the same
-- gateway stand before it here, its own ticket was lost, or came later than theirs: it takes the place of the foremost,
-- or each would wait for the other.
local function foremost(in_line)
    local rank = redis.call('ZRANK', KEYS[4], lease)
    if rank == 0 then return rank end
    local mine = ARGV[10]
    for ahead, other in ipairs(redis.call('ZRANGE', KEYS[4], 0, (rank or in_line) - 1)) do
        if string.sub(other, 1, #mine) == mine then
            local turn, own = redis.call('ZSCORE', KEYS[4], other), redis.call('ZSCORE', KEYS[4], lease)
            if not own then own = redis.call('ZRANGE', KEYS[4], -1, -1, 'WITHSCORES')[2] + 1 end
            redis.call('ZADD', KEYS[4], turn, lease, own, other)
            return ahead - 1
        end
    end
    return rank
end

-- The call may have been made twice, when the answer to the first was lost with its connection.
if places >= 0 and redis.call('ZSCORE', KEYS[3], lease) then return {'admitted', 0, 0} end

local limits = {
    {KEYS[1], 1, tonumber(ARGV[2]), 'requests_per_minute'},
    {KEYS[2], tonumber(ARGV[6]), tonumber(ARGV[3]), 'tokens_per_minute'},
}
local opens, closed = 0, nil
for _, limit in ipairs(limits) do
    if limit[3] >= 0 then
        local wait = opens_in(limit[1], limit[2], limit[3])
        if wait < 0 or (wait > opens and opens >= 0) then opens, closed = wait, limit[4] end
    end
end
if closed then
    leave_line()
    return {'refused', closed, opens}
end

if places >= 0 then
    redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
    for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', now)) do
        redis.call('ZREM', KEYS[4], gone)
        redis.call('ZREM', KEYS[5], gone)
    end
    local in_line = redis.call('ZCARD', KEYS[4])
    local rank
    if waits then rank = foremost(in_line) else rank = redis.call('ZRANK', KEYS[4], lease) end
    local ahead = rank or in_line
    if ahead >= places - redis.call('ZCARD', KEYS[3]) then
        if not rank then
            if not waits and in_line >= line_room then return {'refused', 'places', -1} end
            local last = redis.call('ZRANGE', KEYS[4], -1, -1, 'WITHSCORES')
            redis.call('ZADD', KEYS[4], (tonumber(last[2]) or 0) + 1, lease)
        end
        redis.call('ZADD', KEYS[5], now + lease_us, lease)
        redis.call('PEXPIRE', KEYS[4], math.ceil(lease_us / 500))
        redis.call('PEXPIRE', KEYS[5], math.ceil(lease_us / 500))
        return {'queued', ahead}
    end
    redis.call('ZADD', KEYS[3], now + lease_us, lease)
    redis.call('PEXPIRE', KEYS[3], math.ceil(lease_us / 500))
end
if places >= 0 or waits then leave_line() end
for _, limit in ipairs(limits) do
    if limit[3] >= 0 and limit[2] > 0 then
        redis.call('HINCRBY', limit[1], second, limit[2])
        redis.call('EXPIRE', limit[1], 120)
    end
end
local number = redis.call('HINCRBY', KEYS[6], 'admissions', 1)
redis.call('EXPIRE', KEYS[6], ARGV[9])
return {'admitted', second, number}
"""

# KEYS: the gateway's own, then those that the changes name by position.
# ARGV: the batch's number, whether it may follow any other (1 or 0), how long the gateway's own hash is kept (s), the
#   changes as JSON.
# Returns {1 if the batch's changes hold now, the last number applied, admissions counted, changes that failed}.
APPLY = """
local second = math.floor(now / 1000000)
local number = tonumber(ARGV[1])
local last = tonumber(redis.call('HGET', KEYS[1], 'batch') or '0')
local admissions = tonumber(redis.call('HGET', KEYS[1], 'admissions') or '0')
if number <= last then return {1, last, admissions, 0} end
if number > last + 1 and ARGV[2] ~= '1' then return {0, last, admissions, 0} end
redis.call('HSET', KEYS[1], 'batch', number)
redis.call('EXPIRE', KEYS[1], ARGV[3])

-- One change that cannot be made, of a key that somebody has put something else under, must not hold up the others.
local failures = 0
local function try(...)
    local answer = redis.pcall(...)
    if type(answer) == 'table' and answer.err then
        failures = failures + 1
        return false
    end
    return answer
end

local changes = {}

function changes.shift(key, at, amount)
    if at < second - 60 then return end
    if amount < 0 then amount = -math.min(-amount, tonumber(try('HGET', key, at) or '0')) end
    if amount ~= 0 then
        try('HINCRBY', key, at, amount)
        try('EXPIRE', key, 120)
    end
end

function changes.free(key, leases)
    for _, lease in ipairs(leases) do try('ZREM', key, lease) end
end

function changes.hold(key, leases, lease_us)
    for _, lease in ipairs(leases) do try('ZADD', key, now + lease_us, lease) end
    try('PEXPIRE', key, math.ceil(lease_us / 500))
end

function changes.use(key, counts, purged, made, days, day, keep_s)
    if tonumber(try('GET', KEYS[purged]) or '-1') >= made then return end
    for _, count in ipairs(counts) do try('HINCRBY', key, count[1], count[2]) end
    try('EXPIRE', key, keep_s)
    try('SADD', KEYS[days], day)
    try('EXPIRE', KEYS[days], keep_s)
end

for _, change in ipairs(cjson.decode(ARGV[4])) do
    changes[change[1]](KEYS[change[2]], unpack(change, 3))
end
return {1, number, admissions, failures}
"""

# KEYS: gateways, the gateway's own, then pairs of running and tickets of tenants.
# ARGV: incarnation, how long leases last, how long the gateway's own hash is kept (s), for each pair the leases and the
#   tickets, as JSON.
# Returns {gateways that live, the last batch applied, admissions counted, the time}.
RENEW = """
local expires = now + tonumber(ARGV[2])
redis.call('ZADD', KEYS[1], expires, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('EXPIRE', KEYS[2], ARGV[3])
local keep_ms = math.ceil(tonumber(ARGV[2]) / 500)
for i, held in ipairs(cjson.decode(ARGV[4])) do
    local running, tickets = KEYS[1 + 2 * i], KEYS[2 + 2 * i]
    -- Also those that the server has forgotten or taken for dead: they run.
    for _, lease in ipairs(held[1]) do redis.pcall('ZADD', running, expires, lease) end
    -- A ticket without its turn in the line is worth nothing: who waits asks for a new one.
    for _, ticket in ipairs(held[2]) do redis.pcall('ZADD', tickets, 'XX', expires, ticket) end
    redis.pcall('PEXPIRE', running, keep_ms)
    redis.pcall('PEXPIRE', tickets, keep_ms)
end
local own = redis.call('HMGET', KEYS[2], 'batch', 'admissions')
return {redis.call('ZCARD', KEYS[1]), tonumber(own[1] or '0'), tonumber(own[2] or '0'), now}
"""
