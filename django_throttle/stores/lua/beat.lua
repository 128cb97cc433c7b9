-- Records beats, declares silent processes dead, and assigns the dead to callers, who sweep their leases.
-- KEYS: live (ZSET uid: last beat), dead (ZSET uid: moment from which its sweep may be claimed), meta (HASH
-- uid: JSON); one slot. held:<uid> of living uids is derived from live, so it is in that slot too.
-- ARGV: now in microseconds ("" for the server's clock), silence that means dead and length of a claim in
-- microseconds, "1" to declare the silent dead (not after an interruption of the caller's own beats),
-- most uids to claim, TTL in milliseconds, report (JSON of the first uid; "" when the caller is no process),
-- the time that it should be at least by the caller's own steady clock, and the time of the last beat that the caller
-- wrote here ("" for each that it does not know), number of living uids, those uids, then uids known to be dead.
-- Reply: first living uid known (1 or 0), live processes, dead ones not swept yet, claimed uids, how many of the
-- live ones are silent (not declared dead yet, as it is not certain), now, how many of the given uids live.
local live, dead, meta = KEYS[1], KEYS[2], KEYS[3]
local silence, claim, expires, most = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1', tonumber(ARGV[5])
local ttl, report, expected, wrote, living = ARGV[6], ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local FIRST = 11 -- of the uids
--- use clock

local function text(number) return string.format('%.0f', number) end

-- Needs no memory: after it a full Redis accepts the others.
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ttl) end

-- A moment in the future was written before the clock went back: it counts as now.
for _, uid in ipairs(redis.call('ZRANGEBYSCORE', live, '(' .. text(now), '+inf')) do
  redis.call('ZADD', live, text(now), uid)
end
for _, uid in ipairs(redis.call('ZRANGEBYSCORE', dead, '(' .. text(now + claim), '+inf')) do
  redis.call('ZADD', dead, text(now), uid)
end

-- If Redis or the machine stood still, its clock stepped forward, or the last beats were lost, no process was
-- silent: each silence begins now.
local mine = report ~= '' and redis.call('ZSCORE', live, ARGV[FIRST])
local newest = tonumber(redis.call('ZREVRANGE', live, 0, 0, 'WITHSCORES')[2] or now)
local stood = mine and now - mine > silence -- and yet this process was not declared dead
local stepped = expected and now - expected > silence / 4
local lost = wrote and newest < wrote
if stood or stepped or lost then
  for _, uid in ipairs(redis.call('ZRANGE', live, 0, -1)) do redis.call('ZADD', live, text(now), uid) end
end

local written = 0
for i = FIRST, FIRST + living - 1 do
  local uid = ARGV[i]
  if redis.call('ZSCORE', live, uid) then
    redis.call('ZADD', live, text(now), uid)
    redis.call('PEXPIRE', string.gsub(live, 'live$', 'held:') .. uid, ttl)
    written = written + 1
  end
end
-- The time shows others that the process sends beats itself.
if mine then redis.call('HSET', meta, ARGV[FIRST], string.sub(report, 1, -2) .. ',"at":' .. text(now) .. '}') end

local function expire(uid)
  if redis.call('ZREM', live, uid) == 1 then redis.call('ZADD', dead, text(now), uid) end
end
for i = FIRST + living, #ARGV do expire(ARGV[i]) end
if expires then
  for _, uid in ipairs(redis.call('ZRANGEBYSCORE', live, '-inf', '(' .. text(now - silence))) do expire(uid) end
end

local claimed = redis.call('ZRANGEBYSCORE', dead, '-inf', text(now), 'LIMIT', 0, most)
for _, uid in ipairs(claimed) do redis.call('ZADD', dead, text(now + claim), uid) end
redis.call('PEXPIRE', dead, ttl)
local silent = redis.call('ZCOUNT', live, '-inf', '(' .. text(now - silence))
return { mine and 1 or 0, redis.call('ZCARD', live), redis.call('ZCARD', dead), claimed, silent, text(now), written }
