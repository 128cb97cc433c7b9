-- The names of rules that decided anything lately; those of before 30 days are dropped.
-- KEYS: rec:rules (ZSET rule: minute). ARGV: the first minute, as Unix time. Reply: names.
if redis.call('TYPE', KEYS[1]).ok ~= 'zset' then return {} end
local newest = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
-- Where this server takes no writes, they are left for the next reading.
if newest then redis.pcall('ZREMRANGEBYSCORE', KEYS[1], '-inf', tonumber(newest) - 2592000) end
return redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[1], '+inf')
