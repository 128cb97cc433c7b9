-- Register a process and the lease indexes that it is going to use.
--
-- KEYS[1]     live processes: ZSET uid -> time of the last beat
-- KEYS[2]     meta: HASH uid -> introduction, JSON
-- KEYS[3]     held:<uid>: SET of index keys; all three keys share a slot
-- ARGV[1]     current time in microseconds; "" for the server's clock
-- ARGV[2]     uid
-- ARGV[3]     introduction; "" if Redis should already know the uid
-- ARGV[4]     TTL in milliseconds
-- ARGV[5...]  index keys
-- Reply       1 registered; 0 unknown uid, and nothing was written: the process was declared dead, or Redis lost its
--             data. Only an introduction makes a uid live, so a dead uid never returns.
local live, meta, held = KEYS[1], KEYS[2], KEYS[3]
local uid, introduction, ttl = ARGV[2], ARGV[3], ARGV[4]
local is_live = redis.call('ZSCORE', live, uid)
if not is_live and introduction == '' then return 0 end
redis.call('PEXPIRE', live, ttl) -- needs no memory, so a full Redis accepts the later writes
if not is_live then
  --- use clock
  redis.call('ZADD', live, string.format('%.0f', now), uid)
  redis.call('HSET', meta, uid, introduction)
end
for i = 5, #ARGV do redis.call('SADD', held, ARGV[i]) end
redis.call('PEXPIRE', live, ttl)
redis.call('PEXPIRE', meta, ttl)
redis.call('PEXPIRE', held, ttl)
return 1
