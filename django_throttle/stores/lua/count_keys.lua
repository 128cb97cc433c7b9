-- How many of these keys exist. Each counts as used now, for a server that evicts the least recently used.
-- KEYS: any, all of one slot or on one server. ARGV: none. Reply: the number.
return redis.call('TOUCH', unpack(KEYS))
