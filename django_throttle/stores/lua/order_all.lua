-- One order for every process that lives.
-- KEYS: live (ZSET uid: last beat), asked (when the same was ordered a moment ago); one slot. The lists orders:<uid>
-- are derived from live, so they are in that slot too.
-- ARGV: TTL in milliseconds, most orders that are kept for one, milliseconds for which the same is not ordered again
-- (0: at once), the order. Reply: the number of processes, -1 when it was ordered a moment ago.
local live, asked = KEYS[1], KEYS[2]
local ttl, most, quiet, order = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
if quiet > 0 and not redis.call('SET', asked, '1', 'NX', 'PX', quiet) then return -1 end
local uids = redis.call('ZRANGE', live, 0, -1)
for _, uid in ipairs(uids) do
  local orders = string.gsub(live, 'live$', 'orders:') .. uid
  local there = redis.pcall('LLEN', orders)
  if type(there) ~= 'number' then -- not ours
    redis.call('DEL', orders)
    there = 0
  end
  if there < most then
    redis.call('RPUSH', orders, order)
    if there == 0 then redis.call('PEXPIRE', orders, ttl) end -- else they would live for as long as more come
  end
end
return #uids
