-- Sockets were heard of: where the one that is idle for longest makes room, the others move behind it.
-- KEYS: index (SET of uids). Its set index:<uid> is derived from it: the same hash tag, so the same slot.
-- ARGV: now in microseconds ("" for the server's clock), uid, then lease and microseconds since it was heard of for
-- each lease. Reply: the number of leases given; one that is there no more stays away.
local mine = KEYS[1] .. ':' .. ARGV[2]
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
for i = 3, #ARGV, 2 do redis.pcall('ZADD', mine, 'XX', string.format('%.0f', now - tonumber(ARGV[i + 1])), ARGV[i]) end
return (#ARGV - 2) / 2
