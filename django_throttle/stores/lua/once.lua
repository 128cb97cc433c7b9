-- Whether the caller is the first to report something in a period, so that one process reports it.
-- KEYS[1] what is to be said: until when it counts as said, in microseconds
-- ARGV[1] now in microseconds ("" for the server's clock), ARGV[2] its lifetime in microseconds
-- Reply: 1 for the first, 0 for everyone after
--- use clock
local lasts = tonumber(ARGV[2])
local state = redis.pcall('GET', KEYS[1])
local stands = type(state) == 'string' and tonumber(string.match(state, '^%d+$')) or 0
if stands <= now or stands > now + lasts then -- the latter: the clock went back
  redis.call('SET', KEYS[1], string.format('%d', now + lasts), 'PX', math.max(least_lifetime, math.ceil(lasts / 1000)))
end
return stands <= now and 1 or 0
