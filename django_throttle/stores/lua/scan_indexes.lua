-- Return some of the index keys that a process has announced.
--
-- KEYS[1]  held:<uid>: SET of index keys
-- ARGV[1]  cursor; "0" begins
-- ARGV[2]  approximate number of index keys
-- Reply    next cursor, "0" at the end; then index keys, possibly some of them twice
return redis.call('SSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
