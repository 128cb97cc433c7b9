-- One order for every process that lives, kept with the moment at which it was given, as `at`.
-- KEYS: live (ZSET uid: last beat), asked (HASH: when the same was first asked, and last, in microseconds); one slot.
-- The lists orders:<uid> are derived from live, so they are in that slot too.
-- ARGV: TTL in milliseconds, most orders that are kept for one, milliseconds for which the same is not ordered again
-- (0: at once, and nothing is noted), milliseconds after which it counts as asked for the first time, the order.
-- Reply: the number of processes, -1 when it was ordered a moment ago; milliseconds since it was asked first.
local live, asked = KEYS[1], KEYS[2]
local ttl, most, quiet, order = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[5]
local time, since = redis.call('TIME'), 0
local now = time[1] * 1000000 + time[2]
if quiet > 0 then
  local first, last = redis.pcall('HGET', asked, 'first'), redis.pcall('HGET', asked, 'last')
  first, last = tonumber(type(first) == 'string' and first), tonumber(type(last) == 'string' and last)
  if not (first and last and first <= last and last <= now) then -- not ours, or the clock went back
    redis.call('DEL', asked)
    first, last = now, nil
  end
  since = math.floor((now - first) / 1000)
  if last and now - last < quiet * 1000 then return { -1, since } end
  redis.call('HSET', asked, 'first', string.format('%.0f', first), 'last', string.format('%.0f', now))
  redis.call('PEXPIRE', asked, ARGV[4])
end
local written = string.format('%s,"at":%.0f}', string.sub(order, 1, -2), now)
local uids = redis.call('ZRANGE', live, 0, -1)
for _, uid in ipairs(uids) do
  local orders = string.gsub(live, 'live$', 'orders:') .. uid
  local there = redis.pcall('LLEN', orders)
  if type(there) ~= 'number' then -- not ours
    redis.call('DEL', orders)
    there = 0
  end
  if there < most then
    redis.call('RPUSH', orders, written)
    if there == 0 then redis.call('PEXPIRE', orders, ttl) end -- else they would live for as long as more come
  end
end
return { #uids, since }
