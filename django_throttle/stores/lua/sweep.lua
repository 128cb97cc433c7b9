-- The next connection indexes to remove a dead process from; when none is left, the process is removed.
-- KEYS: dead (ZSET uid: moment from which its sweep may be claimed), meta (HASH uid: JSON), held:<uid> (SET of
-- index keys); one slot.
-- ARGV: now in microseconds ("" for the server's clock), uid, length of a claim in microseconds, most index keys
-- wanted, then the index keys that have been reaped. Reply: index keys; none when the sweep is done.
local dead, meta, held = KEYS[1], KEYS[2], KEYS[3]
local uid = ARGV[2]
if #ARGV > 4 then redis.call('SREM', held, unpack(ARGV, 5)) end
local left = redis.call('SRANDMEMBER', held, ARGV[4])
if #left == 0 then
  redis.call('ZREM', dead, uid)
  redis.call('HDEL', meta, uid)
  return left
end
--- use clock
redis.call('ZADD', dead, 'XX', string.format('%.0f', now + tonumber(ARGV[3])), uid)
return left
