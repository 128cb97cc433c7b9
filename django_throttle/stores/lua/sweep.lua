-- Return the next lease indexes from which to remove a dead process. If none is left, remove the process.
--
-- KEYS[1]     dead processes: ZSET uid -> time from which their sweep may be claimed
-- KEYS[2]     meta: HASH uid -> introduction, JSON
-- KEYS[3]     held:<uid>: SET of index keys; all three keys share a slot
-- ARGV[1]     current time in microseconds; "" for the server's clock
-- ARGV[2]     uid
-- ARGV[3]     duration of a claim in microseconds
-- ARGV[4]     maximum number of index keys
-- ARGV[5...]  index keys that have been reaped
-- Reply       index keys; empty if the sweep is done
local dead, meta, held = KEYS[1], KEYS[2], KEYS[3]
local uid = ARGV[2]
if #ARGV > 4 then redis.call('SREM', held, unpack(ARGV, 5)) end
local indexes = redis.call('SRANDMEMBER', held, ARGV[4])
if #indexes == 0 then
  redis.call('ZREM', dead, uid)
  redis.call('HDEL', meta, uid)
  return indexes
end
--- use clock
redis.call('ZADD', dead, 'XX', string.format('%.0f', now + tonumber(ARGV[3])), uid)
return indexes
