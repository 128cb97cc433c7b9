-- Included in other scripts: set now, in microseconds, to the test clock's time in ARGV[1] or, if that is "", to the
-- server's. Set least_lifetime, the shortest TTL in milliseconds: keys expire by the server's clock, not by the test
-- clock.
local now = tonumber(ARGV[1])
local least_lifetime = now and 3600000 or 1
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
