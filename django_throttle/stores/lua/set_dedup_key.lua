-- Set a key that keeps processes from reporting the same thing twice in a period.
--
-- KEYS[1]  dedup key: STRING, time until which it counts as set, in microseconds
-- ARGV[1]  current time in microseconds; "" for the server's clock
-- ARGV[2]  lifetime in microseconds
-- Reply    1 if this call has set the key, 0 if it was set already
--- use clock
local lifetime = tonumber(ARGV[2])
local state = redis.pcall('GET', KEYS[1])
local set_until = type(state) == 'string' and tonumber(string.match(state, '^%d+$')) or 0
if set_until <= now or set_until > now + lifetime then -- too far ahead if the clock moved backwards
  local ttl = math.max(least_lifetime, math.ceil(lifetime / 1000))
  redis.call('SET', KEYS[1], string.format('%d', now + lifetime), 'PX', ttl)
end
return set_until <= now and 1 or 0
