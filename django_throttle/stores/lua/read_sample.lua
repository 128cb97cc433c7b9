-- A sample of decisions (see sample.lua).
-- KEYS: sample (LIST), its level (STRING). ARGV: none. Reply: the level, then the entries.
local found, level = redis.pcall('LRANGE', KEYS[1], 0, -1), redis.pcall('GET', KEYS[2])
if found.err then found = {} end
table.insert(found, 1, type(level) == 'string' and tonumber(level) or 0)
return found
