-- Publish a new version of the rules.
--
-- KEYS[1]  version: STRING
-- ARGV[1]  new version: time of the edit, and a random text
-- ARGV[2]  TTL in milliseconds
-- Reply    version; then the server's time: seconds, microseconds
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
local time = redis.call('TIME')
return {ARGV[1], tonumber(time[1]), tonumber(time[2])}
