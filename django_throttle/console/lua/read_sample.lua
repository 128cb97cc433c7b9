-- Return a sample of decisions (see sample.lua).
-- KEYS: sample (LIST), its state (STRING). ARGV: none. Reply: the state, then the entries.
local found, state = redis.pcall('LRANGE', KEYS[1], 0, -1), redis.pcall('GET', KEYS[2])
if found.err then found = {} end
table.insert(found, 1, type(state) == 'string' and state or '')
return found
