-- Updates when sockets were last active, for rules that evict the one that is idle for longest.
-- KEYS: index (SET of uids). Its set index:<uid> is derived from it: the same hash tag, so the same slot.
-- ARGV: now in microseconds ("" for the server's clock), uid, then lease and microseconds since it was active for
-- each lease. Reply: the number of leases given; one that is gone is not added.
local mine = KEYS[1] .. ':' .. ARGV[2]
--- use clock
for i = 3, #ARGV, 2 do redis.pcall('ZADD', mine, 'XX', string.format('%.0f', now - tonumber(ARGV[i + 1])), ARGV[i]) end
return (#ARGV - 2) / 2
