-- Makes rates full again. KEYS: the counters, all of one slot or on one server. ARGV: none.
-- Reply: the number of keys removed.
local removed = 0
for _, key in ipairs(KEYS) do removed = removed + redis.call('DEL', key) end
return removed
