-- Extends the TTL of one process' leases under one connection index, and compares their number.
-- KEYS: index (SET of uids). Its sets index:<uid> are derived from it: the same hash tag, so the same slot.
-- ARGV: now in microseconds ("" for the server's clock), uid, TTL in milliseconds, number of leases expected,
-- grace in microseconds. Reply: the number of leases there; where that is more than expected, also the leases
-- taken longer than the grace ago, for the process to find those that it does not have.
local index, uid, ttl, expected, grace = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local mine = index .. ':' .. uid
if redis.call('PEXPIRE', mine, ttl) == 0 then return { 0 } end
local found = redis.pcall('ZCARD', mine)
-- An error: a foreign value, which register.lua replaces.
if type(found) ~= 'number' or type(redis.pcall('SADD', index, uid)) ~= 'number' then return { 0 } end
redis.call('PEXPIRE', index, ttl)
if found <= expected then return { found } end
--- use clock
local reply = redis.call('ZRANGEBYSCORE', mine, '-inf', string.format('%.0f', now - grace))
table.insert(reply, 1, found)
return reply
