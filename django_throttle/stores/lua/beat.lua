-- Processes live, others are buried, and what the buried held is handed out to be swept.
-- KEYS: live (ZSET uid: last beat), dead (ZSET uid: moment from which its sweep may be claimed), meta (HASH
-- uid: JSON); one slot. held:<uid> of living uids is derived from live, so it is in that slot too.
-- ARGV: now in microseconds ("" for the server's clock), silence that means dead and length of a claim in
-- microseconds, "1" to bury the silent (a beater whose own beats were interrupted cannot tell who was silent),
-- most uids to claim, TTL in milliseconds, report (JSON of the first uid; "" when the caller is no process),
-- number of living uids, those uids, then uids known to be dead.
-- Reply: first living uid known (1 or 0), live processes, dead ones not swept yet, claimed uids, and how many of the
-- live ones are silent: nobody has buried them, as it is not certain yet.
local live, dead, meta = KEYS[1], KEYS[2], KEYS[3]
local silence, claim, buries, most = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1', tonumber(ARGV[5])
local ttl, report, living = ARGV[6], ARGV[7], tonumber(ARGV[8])
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function text(number) return string.format('%.0f', number) end

-- The first write needs no memory, so that a full Redis accepts the others.
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ttl) end

-- A moment in the future was written before the clock went back: it counts as now.
for _, uid in ipairs(redis.call('ZRANGEBYSCORE', live, '(' .. text(now), '+inf')) do
  redis.call('ZADD', live, text(now), uid)
end
for _, uid in ipairs(redis.call('ZRANGEBYSCORE', dead, '(' .. text(now + claim), '+inf')) do
  redis.call('ZADD', dead, text(now), uid)
end

-- Silent ourselves, yet nobody buried us: Redis or the clock stood still for everyone, so that time does not count.
local mine = report ~= '' and redis.call('ZSCORE', live, ARGV[9])
if mine and now - mine > silence then
  local all = redis.call('ZRANGE', live, 0, -1, 'WITHSCORES')
  local gap = now - tonumber(all[#all])
  for i = 1, #all, 2 do redis.call('ZADD', live, text(all[i + 1] + gap), all[i]) end
end

for i = 9, 8 + living do
  local uid = ARGV[i]
  if redis.call('ZSCORE', live, uid) then
    redis.call('ZADD', live, text(now), uid)
    redis.call('PEXPIRE', string.gsub(live, 'live$', 'held:') .. uid, ttl)
  end
end
if mine then redis.call('HSET', meta, ARGV[9], report) end

local function bury(uid)
  if redis.call('ZREM', live, uid) == 1 then redis.call('ZADD', dead, text(now), uid) end
end
for i = 9 + living, #ARGV do bury(ARGV[i]) end
if buries then
  for _, uid in ipairs(redis.call('ZRANGEBYSCORE', live, '-inf', '(' .. text(now - silence))) do bury(uid) end
end

local claimed = redis.call('ZRANGEBYSCORE', dead, '-inf', text(now), 'LIMIT', 0, most)
for _, uid in ipairs(claimed) do redis.call('ZADD', dead, text(now + claim), uid) end
redis.call('PEXPIRE', dead, ttl)
local silent = redis.call('ZCOUNT', live, '-inf', '(' .. text(now - silence))
return { mine and 1 or 0, redis.call('ZCARD', live), redis.call('ZCARD', dead), claimed, silent }
