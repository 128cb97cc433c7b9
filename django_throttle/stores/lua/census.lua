-- The live processes and their introductions.
-- KEYS: live (ZSET uid: last beat), meta (HASH uid: JSON); one slot. ARGV: none.
-- Reply: uid, JSON for each living process ("" when it is missing).
local found = {}
for _, uid in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  found[#found + 1] = uid
  found[#found + 1] = redis.call('HGET', KEYS[2], uid) or ''
end
return found
