-- Withdraws the announcement of index keys under which a process has no leases left.
-- KEYS: held:<uid> (SET of index keys). ARGV: index keys. Reply: the number removed.
local removed = 0
for _, index in ipairs(ARGV) do removed = removed + redis.call('SREM', KEYS[1], index) end
return removed
