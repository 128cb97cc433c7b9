-- Write the leases of a process under an index again, after Redis has lost them or never had them. A repeated call
-- changes nothing.
--
-- KEYS[1]     lease index: SET of uids. Derived from it, in the same slot:
--             index:<uid>   leases of a process: ZSET lease -> time of opening or last activity
--             index:!       evicted leases, which are not written again; see evict.lua
-- ARGV[1]     current time in microseconds; "" for the server's clock
-- ARGV[2]     uid
-- ARGV[3]     TTL in milliseconds
-- ARGV[4]     number of former uids of the process; the new uid takes over their leases
-- ARGV[5...]  these former uids; then lease and age in microseconds, alternating
-- Reply       number of leases of this uid; then the leases that were evicted
local index, uid, ttl, former_count = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local own_leases = index .. ':' .. uid
--- use clock
local function has_kind(kind, key)
  local stored_kind = redis.call('TYPE', key).ok
  return stored_kind == kind or stored_kind == 'none'
end
-- A foreign value is replaced.
if not has_kind('set', index) then redis.call('DEL', index) end
if not has_kind('zset', own_leases) then redis.call('DEL', own_leases) end
redis.call('PEXPIRE', index, ttl) -- needs no memory, so a full Redis accepts the later writes
for i = 5, 4 + former_count do
  redis.call('DEL', index .. ':' .. ARGV[i])
  redis.call('SREM', index, ARGV[i])
end
local reply = { 0 }
for i = 5 + former_count, #ARGV, 2 do
  local lease = ARGV[i]
  if string.byte(lease) == 126 and type(redis.pcall('ZSCORE', index .. ':!', lease)) == 'string' then
    reply[#reply + 1] = lease
  else
    redis.call('ZADD', own_leases, 'NX', string.format('%.0f', now - tonumber(ARGV[i + 1])), lease)
  end
end
reply[1] = redis.call('ZCARD', own_leases)
if reply[1] > 0 then redis.call('SADD', index, uid) end
redis.call('PEXPIRE', own_leases, ttl)
redis.call('PEXPIRE', index, ttl)
return reply
