-- Publishes a new version of the rules.
-- KEYS[1] version
-- ARGV[1] the new version: when the edit was, and a random text, ARGV[2] its TTL in ms
-- Reply: the version as text, then the time: seconds, microseconds
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
local time = redis.call('TIME')
return {ARGV[1], tonumber(time[1]), tonumber(time[2])}
