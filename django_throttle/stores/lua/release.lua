-- Gives one lease back. Doing it twice, or for a lease that is not there, changes nothing.
-- KEYS: index (SET of uids). Its sets index:<uid>, index:! and index:> are derived from it: the same hash tag, so the same
-- slot.
-- ARGV: uid, lease. Reply: 1 when it was held, else 0; and 2 more where somebody waits for a slot, see enlist.lua.
local index, uid, lease = KEYS[1], ARGV[1], ARGV[2]
local mine = index .. ':' .. uid
local freed = redis.pcall('ZREM', mine, lease) -- an error: a foreign value
if string.byte(lease) == 126 then redis.pcall('ZREM', index .. ':!', lease) end -- "~": whoever lost it has let go
if redis.call('EXISTS', mine) == 0 then redis.pcall('SREM', index, uid) end
return (type(freed) == 'number' and freed or 0) + 2 * redis.call('EXISTS', index .. ':>')
