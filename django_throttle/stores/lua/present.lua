-- How many of these keys are there. Each counts as used just now, for a server that evicts those used longest ago.
-- KEYS: any, all of one slot or on one server. ARGV: none. Reply: the number.
return redis.call('TOUCH', unpack(KEYS))
