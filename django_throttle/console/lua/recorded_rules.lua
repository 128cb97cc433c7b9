-- Return the names of rules with recent decisions. Remove rules without decisions in 30 days.
-- KEYS: rec:rules (ZSET rule: minute). ARGV: first minute, in seconds since 1970. Reply: names.
if redis.call('TYPE', KEYS[1]).ok ~= 'zset' then return {} end
local newest = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
-- On a server that accepts no writes, the next reading removes them.
if newest then redis.pcall('ZREMRANGEBYSCORE', KEYS[1], '-inf', tonumber(newest) - 2592000) end
return redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[1], '+inf')
