-- Release a lease. A repeated call, or one for an unknown lease, changes nothing.
--
-- KEYS[1]  lease index: SET of uids; index:<uid>, index:! (see evict.lua) and index:> (see enlist.lua) are derived from
--          it, in the same slot
-- ARGV[1]  uid
-- ARGV[2]  lease
-- Reply    1 if the lease was held, otherwise 0; plus 2 if a run waits for a slot
local index, uid, lease = KEYS[1], ARGV[1], ARGV[2]
local own_leases = index .. ':' .. uid
local removed = redis.pcall('ZREM', own_leases, lease) -- an error reply: a foreign value
-- "~" begins a socket's lease, which may have been evicted.
if string.byte(lease) == 126 then redis.pcall('ZREM', index .. ':!', lease) end
if redis.call('EXISTS', own_leases) == 0 then redis.pcall('SREM', index, uid) end
return (type(removed) == 'number' and removed or 0) + 2 * redis.call('EXISTS', index .. ':>')
