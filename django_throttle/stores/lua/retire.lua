-- Remove index keys under which a process has no leases left from its announcement.
--
-- KEYS[1]  held:<uid>: SET of index keys
-- ARGV     index keys
-- Reply    number of removed keys
local removed = 0
for _, index in ipairs(ARGV) do removed = removed + redis.call('SREM', KEYS[1], index) end
return removed
