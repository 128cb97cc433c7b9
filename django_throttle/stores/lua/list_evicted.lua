-- The evicted sockets that have not released their slots yet; a new socket that withdraws evicts none from now on.
-- KEYS: index (SET of uids). Derived from it, with the same hash tag and so in the same slot: index:<lease> (there when
-- that new socket has withdrawn), index:! (ZSET lease: evicted at; see evict.lua).
-- ARGV: the new socket's lease ("" when it stays), milliseconds for which its eviction may still arrive.
-- Reply: leases.
local index, lease, lasts = KEYS[1], ARGV[1], ARGV[2]
if lease ~= '' then
  redis.call('PEXPIRE', index .. ':' .. lease, lasts) -- needs no memory: after it a full Redis accepts the next
  redis.call('SET', index .. ':' .. lease, '', 'PX', lasts)
end
local lost = redis.pcall('ZRANGE', index .. ':!', 0, -1)
return lost.err and {} or lost
