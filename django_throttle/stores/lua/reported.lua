-- The list that a process has stored (see report.lua).
-- KEYS: sockets:<uid>:<search> (JSON). ARGV: none. Reply: the list, "" when there is none.
local found = redis.pcall('GET', KEYS[1])
return type(found) == 'string' and found or ''
