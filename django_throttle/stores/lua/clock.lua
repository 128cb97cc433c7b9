-- Variables for other scripts. KEYS, ARGV but the first, reply: theirs.
-- Sets now, in microseconds: the server's clock, or a test's in ARGV[1]. Keys expire by the server's clock alone, so under a
-- test's they live least_lifetime milliseconds at least.
local now = tonumber(ARGV[1])
local least_lifetime = now and 3600000 or 1
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
