-- List evicted sockets that have not released their slots yet. Optionally mark a new socket as withdrawn, so that it
-- evicts none from now on.
--
-- KEYS[1]  lease index: SET of uids. Derived from it, in the same slot:
--          index:!         evicted leases: ZSET lease -> time of eviction; see evict.lua
--          index:<lease>   marks a new socket as withdrawn: STRING
-- ARGV[1]  lease of the new socket; "" if it has not withdrawn
-- ARGV[2]  TTL of the mark in milliseconds: the time in which a call of evict.lua may still arrive
-- Reply    evicted leases
local index, lease, ttl = KEYS[1], ARGV[1], ARGV[2]
if lease ~= '' then
  redis.call('PEXPIRE', index .. ':' .. lease, ttl) -- needs no memory, so a full Redis accepts the next write
  redis.call('SET', index .. ':' .. lease, '', 'PX', ttl)
end
local evicted = redis.pcall('ZRANGE', index .. ':!', 0, -1)
return evicted.err and {} or evicted
