-- Record beats, declare silent processes dead, and assign dead processes to the caller, which sweeps their leases.
--
-- KEYS[1]      live processes: ZSET uid -> time of the last beat
-- KEYS[2]      dead processes: ZSET uid -> time from which their sweep may be claimed
-- KEYS[3]      meta: HASH uid -> introduction, JSON
--              held:<uid> of live uids is derived from KEYS[1]; all keys share a slot
-- ARGV[1]      current time in microseconds; "" for the server's clock
-- ARGV[2]      silence after which a process is dead, in microseconds
-- ARGV[3]      duration of a claim in microseconds
-- ARGV[4]      "1" declares silent processes dead; otherwise not, as the caller's own beats were interrupted
-- ARGV[5]      maximum number of claims
-- ARGV[6]      TTL in milliseconds
-- ARGV[7]      report: introduction of the first living uid, the caller; "" if the caller is no such process
-- ARGV[8]      expected current time by the caller's monotonic clock; "" if unknown
-- ARGV[9]      time of the last beat that the caller wrote to this server; "" if unknown
-- ARGV[10]     number of living uids
-- ARGV[11...]  these living uids, then uids known to be dead
-- Reply        1 if the caller is live, otherwise 0
--              number of live processes
--              number of dead processes that are not swept yet
--              claimed uids
--              number of live processes that are silent: they may be dead
--              current time in microseconds
--              number of the given living uids that are live
local live, dead, meta = KEYS[1], KEYS[2], KEYS[3]
local silence, claim_us = tonumber(ARGV[2]), tonumber(ARGV[3])
local may_expire, max_claims = ARGV[4] == '1', tonumber(ARGV[5])
local ttl, report = ARGV[6], ARGV[7]
local expected_now, last_beat, living_count = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local FIRST_UID = 11 -- index in ARGV
--- use clock

local function text(number) return string.format('%.0f', number) end

-- Needs no memory, so a full Redis accepts the later writes.
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ttl) end

-- Times in the future were written before the clock moved backwards. Replace them by the current time.
for _, uid in ipairs(redis.call('ZRANGEBYSCORE', live, '(' .. text(now), '+inf')) do
  redis.call('ZADD', live, text(now), uid)
end
for _, uid in ipairs(redis.call('ZRANGEBYSCORE', dead, '(' .. text(now + claim_us), '+inf')) do
  redis.call('ZADD', dead, text(now), uid)
end

-- If Redis or the machine was stopped, its clock moved forwards, or the last beats were lost, the silence proves
-- nothing. Count it from now on for every process.
local own_beat = report ~= '' and redis.call('ZSCORE', live, ARGV[FIRST_UID])
local newest = tonumber(redis.call('ZREVRANGE', live, 0, 0, 'WITHSCORES')[2] or now)
local has_stalled = own_beat and now - own_beat > silence -- but the caller was not declared dead
local has_stepped = expected_now and now - expected_now > silence / 4
local has_lost_beats = last_beat and newest < last_beat
if has_stalled or has_stepped or has_lost_beats then
  for _, uid in ipairs(redis.call('ZRANGE', live, 0, -1)) do redis.call('ZADD', live, text(now), uid) end
end

local beaten = 0
for i = FIRST_UID, FIRST_UID + living_count - 1 do
  local uid = ARGV[i]
  if redis.call('ZSCORE', live, uid) then
    redis.call('ZADD', live, text(now), uid)
    redis.call('PEXPIRE', string.gsub(live, 'live$', 'held:') .. uid, ttl)
    beaten = beaten + 1
  end
end
-- The time `at` shows that this process sends its own beats.
if own_beat then
  redis.call('HSET', meta, ARGV[FIRST_UID], string.sub(report, 1, -2) .. ',"at":' .. text(now) .. '}')
end

local function expire(uid)
  if redis.call('ZREM', live, uid) == 1 then redis.call('ZADD', dead, text(now), uid) end
end
for i = FIRST_UID + living_count, #ARGV do expire(ARGV[i]) end
if may_expire then
  for _, uid in ipairs(redis.call('ZRANGEBYSCORE', live, '-inf', '(' .. text(now - silence))) do expire(uid) end
end

local claimed = redis.call('ZRANGEBYSCORE', dead, '-inf', text(now), 'LIMIT', 0, max_claims)
for _, uid in ipairs(claimed) do redis.call('ZADD', dead, text(now + claim_us), uid) end
redis.call('PEXPIRE', dead, ttl)
local silent_count = redis.call('ZCOUNT', live, '-inf', '(' .. text(now - silence))
local live_count, dead_count = redis.call('ZCARD', live), redis.call('ZCARD', dead)
return { own_beat and 1 or 0, live_count, dead_count, claimed, silent_count, text(now), beaten }
