-- Removes a dead process from connection indexes.
-- KEYS: indexes (SETs of uids), of one slot or of a server that has all. Sets index:<uid> and index:! are derived from
-- each: the same hash tag, so the same slot.
-- ARGV: uid. Reply: the number of leases freed; then evicted leases that no process has released, as the dead
-- process may have evicted them without notifying their owners.
local uid, reply, sets, evicted = ARGV[1], { 0 }, {}, {}
for i, index in ipairs(KEYS) do
  sets[i], evicted[i] = index .. ':' .. uid, index .. ':!'
  local leases = redis.pcall('ZCARD', sets[i])
  reply[1] = reply[1] + (type(leases) == 'number' and leases or 0)
  redis.pcall('SREM', index, uid) -- a foreign value in its place is not ours to judge here
end
redis.call('DEL', unpack(sets))
if redis.call('EXISTS', unpack(evicted)) == 0 then return reply end
for _, gone in ipairs(evicted) do
  local lost = redis.pcall('ZRANGE', gone, 0, -1)
  for _, lease in ipairs(lost.err and {} or lost) do reply[#reply + 1] = lease end
end
return reply
