-- Registers a process, and the connection indexes under which it will have leases.
-- KEYS: live (ZSET uid: last beat), meta (HASH uid: JSON), held:<uid> (SET of index keys); one slot.
-- ARGV: now in microseconds ("" for the server's clock), uid, introduction (JSON; "" when Redis should have
-- the uid already), TTL in milliseconds, then any number of index keys.
-- Reply: 1 announced, 0 the uid is unknown (declared dead, or lost with Redis' data) and nothing was
-- written: only an introduction makes a uid live, so a dead one never returns.
local live, meta, held = KEYS[1], KEYS[2], KEYS[3]
local uid, introduction, ttl = ARGV[2], ARGV[3], ARGV[4]
local known = redis.call('ZSCORE', live, uid)
if not known and introduction == '' then return 0 end
redis.call('PEXPIRE', live, ttl) -- needs no memory: after it a full Redis accepts the others
if not known then
  --- use clock
  redis.call('ZADD', live, string.format('%.0f', now), uid)
  redis.call('HSET', meta, uid, introduction)
end
for i = 5, #ARGV do redis.call('SADD', held, ARGV[i]) end
redis.call('PEXPIRE', live, ttl)
redis.call('PEXPIRE', meta, ttl)
redis.call('PEXPIRE', held, ttl)
return 1
