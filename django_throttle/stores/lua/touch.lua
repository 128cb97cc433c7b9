-- Update when sockets were last active, for rules that evict the socket inactive for longest.
--
-- KEYS[1]     lease index: SET of uids; index:<uid> is derived from it, in the same slot
-- ARGV[1]     current time in microseconds; "" for the server's clock
-- ARGV[2]     uid
-- ARGV[3...]  lease and microseconds since its last activity, alternating; unknown leases are ignored
-- Reply       number of given leases
local own_leases = KEYS[1] .. ':' .. ARGV[2]
--- use clock
for i = 3, #ARGV, 2 do
  redis.pcall('ZADD', own_leases, 'XX', string.format('%.0f', now - tonumber(ARGV[i + 1])), ARGV[i])
end
return (#ARGV - 2) / 2
