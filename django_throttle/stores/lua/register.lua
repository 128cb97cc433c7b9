-- Writes the leases of one process under one connection index again, after Redis lost them or never had them.
-- KEYS: index (SET of uids). Its sets index:<uid> are derived from it: the same hash tag, so the same slot; so is
-- index:!, evicted leases (see evict.lua), which are not written again.
-- ARGV: now in microseconds ("" for the server's clock), uid, TTL in milliseconds, number of former uids of the
-- same process, those uids (their leases are counted under the new one now), then lease and age in microseconds
-- for each lease. Doing it twice changes nothing. Reply: the number of leases of this uid, then those taken away.
local index, uid, ttl, former = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local mine = index .. ':' .. uid
--- use clock
local function is(kind, key)
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
-- A foreign value is replaced.
if not is('set', index) then redis.call('DEL', index) end
if not is('zset', mine) then redis.call('DEL', mine) end
redis.call('PEXPIRE', index, ttl) -- needs no memory: after it a full Redis accepts the others
for i = 5, 4 + former do
  redis.call('DEL', index .. ':' .. ARGV[i])
  redis.call('SREM', index, ARGV[i])
end
local reply = { 0 }
for i = 5 + former, #ARGV, 2 do
  local lease = ARGV[i]
  if string.byte(lease) == 126 and type(redis.pcall('ZSCORE', index .. ':!', lease)) == 'string' then
    reply[#reply + 1] = lease
  else
    redis.call('ZADD', mine, 'NX', string.format('%.0f', now - tonumber(ARGV[i + 1])), lease)
  end
end
reply[1] = redis.call('ZCARD', mine)
if reply[1] > 0 then redis.call('SADD', index, uid) end
redis.call('PEXPIRE', mine, ttl)
redis.call('PEXPIRE', index, ttl)
return reply
