-- Whether a lease is still there, or was lost with Redis' data or evicted (see evict.lua).
-- KEYS: index (SET of uids). Derived from it, with the same hash tag and so in the same slot: index:<uid>, index:!.
-- ARGV: uid, lease. Reply: 1, or 0 when it was lost.
local index, uid, lease = KEYS[1], ARGV[1], ARGV[2]
for _, key in ipairs({ index .. ':' .. uid, index .. ':!' }) do
  if type(redis.pcall('ZSCORE', key, lease)) == 'string' then return 1 end
end
return 0
