-- Which sockets have lost their slots and have not let go of them yet; a newcomer who withdraws takes none from now on.
-- KEYS: index (SET of uids). Derived from it, with the same hash tag and so in the same slot: index:<lease> (there when
-- that newcomer has withdrawn), index:! (ZSET lease: when it was taken away; see evict.lua).
-- ARGV: the newcomer's lease ("" when it stays), milliseconds for which an eviction of its may still be on its way.
-- Reply: leases.
local index, lease, lasts = KEYS[1], ARGV[1], ARGV[2]
if lease ~= '' then
  redis.call('PEXPIRE', index .. ':' .. lease, lasts) -- the first write needs no memory: a full Redis accepts the next
  redis.call('SET', index .. ':' .. lease, '', 'PX', lasts)
end
local lost = redis.pcall('ZRANGE', index .. ':!', 0, -1)
return lost.err and {} or lost
