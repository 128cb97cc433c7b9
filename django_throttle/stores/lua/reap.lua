-- Removes a dead process from one connection index.
-- KEYS: index (SET of uids). Its sets index:<uid> and index:! are derived from it: the same hash tag, so the same slot.
-- ARGV: uid. Reply: the number of leases freed; then evicted leases that no process has released, as the dead
-- process may have evicted them without notifying their owners.
local index, uid = KEYS[1], ARGV[1]
local leases = redis.pcall('ZCARD', index .. ':' .. uid)
redis.call('DEL', index .. ':' .. uid)
redis.pcall('SREM', index, uid) -- a foreign value in its place is not ours to judge here
local lost = redis.pcall('ZRANGE', index .. ':!', 0, -1)
local reply = lost.err and {} or lost
table.insert(reply, 1, type(leases) == 'number' and leases or 0)
return reply
