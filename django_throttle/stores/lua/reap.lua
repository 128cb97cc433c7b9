-- Remove a dead process from lease indexes.
--
-- KEYS     lease indexes: SETs of uids, of one slot or on a server with all slots; index:<uid> and index:! (see
--          evict.lua) are derived from each, in the same slot
-- ARGV[1]  uid
-- Reply    number of freed leases; then evicted leases that are not released yet, because the dead process may have
--          evicted them without notifying their owners
local uid, reply, sets, evicted = ARGV[1], { 0 }, {}, {}
for i, index in ipairs(KEYS) do
  sets[i], evicted[i] = index .. ':' .. uid, index .. ':!'
  local leases = redis.pcall('ZCARD', sets[i])
  reply[1] = reply[1] + (type(leases) == 'number' and leases or 0)
  redis.pcall('SREM', index, uid) -- ignores a foreign value
end
redis.call('DEL', unpack(sets))
if redis.call('EXISTS', unpack(evicted)) == 0 then return reply end
for _, set in ipairs(evicted) do
  local leases = redis.pcall('ZRANGE', set, 0, -1)
  for _, lease in ipairs(leases.err and {} or leases) do reply[#reply + 1] = lease end
end
return reply
