-- Stores a process' list of its sockets, for the process that asked.
-- KEYS: sockets:<uid>:<search> (JSON). ARGV: TTL in milliseconds, the list. Reply: 1.
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[1])
return 1
