-- Check that a lease still exists: Redis has not lost it. An evicted lease counts as existing.
--
-- KEYS[1]  lease index: SET of uids; index:<uid> and index:! (see evict.lua) are derived from it, in the same slot
-- ARGV[1]  uid
-- ARGV[2]  lease
-- Reply    1 if it exists, otherwise 0
local index, uid, lease = KEYS[1], ARGV[1], ARGV[2]
for _, key in ipairs({ index .. ':' .. uid, index .. ':!' }) do
  if type(redis.pcall('ZSCORE', key, lease)) == 'string' then return 1 end
end
return 0
