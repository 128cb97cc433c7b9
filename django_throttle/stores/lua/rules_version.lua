-- Return the version of the rules. If there is none, set a random one, so that a loss of data shows as a new version.
--
-- KEYS[1]  version: STRING
-- ARGV[1]  version to set if there is none
-- ARGV[2]  TTL in milliseconds
-- Reply    version; then the server's time: seconds, microseconds
local version = redis.call('GET', KEYS[1])
if not version then
  version = ARGV[1]
  redis.call('SET', KEYS[1], version, 'PX', ARGV[2])
end
local time = redis.call('TIME')
return {version, tonumber(time[1]), tonumber(time[2])}
