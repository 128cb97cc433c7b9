-- Some of the connection indexes that a process has announced.
-- KEYS: held:<uid> (SET of index keys). ARGV: cursor ("0" to begin), about how many.
-- Reply: the next cursor ("0" at the end), index keys; one may come twice.
return redis.call('SSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
