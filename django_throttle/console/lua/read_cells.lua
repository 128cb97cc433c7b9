-- Return the decisions of a rule in an hour, or a day (see record.lua).
-- KEYS: cells (HASH time: cell). ARGV: none. Reply: times and cells in turns.
local found = redis.pcall('HGETALL', KEYS[1])
return found.err and {} or found
