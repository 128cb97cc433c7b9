-- Pause the calls of an ident in all processes. A longer pause replaces a shorter one.
--
-- KEYS[1]  end of the pause: STRING, time in microseconds
-- ARGV[1]  current time in microseconds; "" for the server's clock
-- ARGV[2]  duration in microseconds; 0 only reads
-- Reply    microseconds left
--- use clock
local duration = tonumber(ARGV[2])
local state = redis.pcall('GET', KEYS[1])
local paused_until = type(state) == 'string' and #state <= 16 and tonumber(string.match(state, '^%d+$')) or 0
local left = math.max(0, paused_until - now)
if duration > left then
  local ttl = math.max(least_lifetime, math.ceil(duration / 1000))
  redis.call('SET', KEYS[1], string.format('%d', now + duration), 'PX', ttl)
  left = duration
end
return left
