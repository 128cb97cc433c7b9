-- The version of the rules: a random text, so that a Redis that lost it and got a new one shows as a change.
-- KEYS[1] version
-- ARGV[1] a version to put there when there is none, ARGV[2] its TTL in ms
-- Reply: the version as text, then the time: seconds, microseconds
local version = redis.call('GET', KEYS[1])
if not version then
  version = ARGV[1]
  redis.call('SET', KEYS[1], version, 'PX', ARGV[2])
end
local time = redis.call('TIME')
return {version, tonumber(time[1]), tonumber(time[2])}
