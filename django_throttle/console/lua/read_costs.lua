-- Return the costs of each route of a site in four hours (see add_costs.lua).
-- KEYS: costs:<period> (HASH measure:bucket:scope: number). ARGV: none. Reply: fields and numbers in turns.
local found = redis.pcall('HGETALL', KEYS[1])
return found.err and {} or found
