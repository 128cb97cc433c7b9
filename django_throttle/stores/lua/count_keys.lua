-- Count the keys that exist. This also marks them as recently used, so that a server evicts them late.
--
-- KEYS   any keys of one slot or on one server
-- ARGV   none
-- Reply  number of keys that exist
return redis.call('TOUCH', unpack(KEYS))
