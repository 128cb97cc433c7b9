-- Publishes a new version of the rules.
-- KEYS[1] version
-- ARGV[1] the new version: when the edit was, and a random text, ARGV[2] its TTL in ms
-- Reply: the version, as text
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
