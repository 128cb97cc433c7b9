-- Extends the TTL of what one process holds under one connection index.
-- KEYS: index (SET of uids). Its sets index:<uid> are derived from it: the same hash tag, so the same slot.
-- ARGV: uid, TTL in milliseconds. Reply: the number of leases there; 0 when they must be registered again.
local index, uid, ttl = KEYS[1], ARGV[1], ARGV[2]
local mine = index .. ':' .. uid
if redis.call('PEXPIRE', mine, ttl) == 0 then return 0 end
redis.call('PEXPIRE', index, ttl)
if redis.call('SISMEMBER', index, uid) == 0 then return 0 end
return redis.call('ZCARD', mine)
