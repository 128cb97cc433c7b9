-- Extend the TTL of a process' leases under an index, and compare their number.
--
-- KEYS[1]  lease index: SET of uids; index:<uid> is derived from it, in the same slot
-- ARGV[1]  current time in microseconds; "" for the server's clock
-- ARGV[2]  uid
-- ARGV[3]  TTL in milliseconds
-- ARGV[4]  expected number of leases
-- ARGV[5]  grace in microseconds
-- Reply    number of leases; if that exceeds the expected number, then each lease older than the grace
local index, uid, ttl, expected, grace = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local own_leases = index .. ':' .. uid
if redis.call('PEXPIRE', own_leases, ttl) == 0 then return { 0 } end
local lease_count = redis.pcall('ZCARD', own_leases)
-- An error reply: a foreign value, which register.lua replaces.
if type(lease_count) ~= 'number' or type(redis.pcall('SADD', index, uid)) ~= 'number' then return { 0 } end
redis.call('PEXPIRE', index, ttl)
if lease_count <= expected then return { lease_count } end
--- use clock
local reply = redis.call('ZRANGEBYSCORE', own_leases, '-inf', string.format('%.0f', now - grace))
table.insert(reply, 1, lease_count)
return reply
