-- Store the report of a process about its rules, or remove it.
-- KEYS: rec:processes (HASH process: JSON). ARGV: process, JSON, or "" if the process ends, TTL in milliseconds.
-- Reply: 1.
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then redis.call('DEL', KEYS[1]) end
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return 1
