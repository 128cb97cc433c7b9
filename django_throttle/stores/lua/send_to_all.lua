-- Queues one control message for every live process, with the time of its queueing, `at`.
-- KEYS: live (ZSET uid: last beat), asked (HASH: when the same was first asked, and last, in microseconds); one slot.
-- The lists orders:<uid> are derived from live, so they are in that slot too.
-- ARGV: TTL in milliseconds, most in one queue, milliseconds for which the same is not queued again
-- (0: always queued, nothing is noted), milliseconds after which it counts as asked for the first time, the message.
-- Reply: the number of processes, -1 when it was queued a moment ago; milliseconds since it was asked first.
local live, asked = KEYS[1], KEYS[2]
local ttl, most, quiet, message = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[5]
local time, since = redis.call('TIME'), 0
local now = time[1] * 1000000 + time[2]
if quiet > 0 then
  local first, last = redis.pcall('HGET', asked, 'first'), redis.pcall('HGET', asked, 'last')
  first, last = tonumber(type(first) == 'string' and first), tonumber(type(last) == 'string' and last)
  if not (first and last and first <= last and last <= now) then -- a foreign value, or the clock went back
    redis.call('DEL', asked)
    first, last = now, nil
  end
  since = math.floor((now - first) / 1000)
  if last and now - last < quiet * 1000 then return { -1, since } end
  redis.call('HSET', asked, 'first', string.format('%.0f', first), 'last', string.format('%.0f', now))
  redis.call('PEXPIRE', asked, ARGV[4])
end
local written = string.format('%s,"at":%.0f}', string.sub(message, 1, -2), now)
local uids = redis.call('ZRANGE', live, 0, -1)
for _, uid in ipairs(uids) do
  local queue = string.gsub(live, 'live$', 'orders:') .. uid
  local there = redis.pcall('LLEN', queue)
  if type(there) ~= 'number' then -- a foreign value
    redis.call('DEL', queue)
    there = 0
  end
  if there < most then
    redis.call('RPUSH', queue, written)
    if there == 0 then redis.call('PEXPIRE', queue, ttl) end -- else each new one would keep the old ones alive
  end
end
return { #uids, since }
