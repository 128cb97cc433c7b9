-- Takes a dead process out of one connection index.
-- KEYS: index (SET of uids). Its sets index:<uid> are derived from it: the same hash tag, so the same slot.
-- ARGV: uid. Reply: the number of leases freed.
local index, uid = KEYS[1], ARGV[1]
local leases = redis.pcall('ZCARD', index .. ':' .. uid)
redis.call('DEL', index .. ':' .. uid)
redis.pcall('SREM', index, uid) -- a foreign value in its place is not ours to judge here
return type(leases) == 'number' and leases or 0
