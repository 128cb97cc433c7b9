-- Holds calls back until a moment, which every process then knows; a later moment replaces it, an earlier one does not.
-- KEYS[1] the moment, in microseconds
-- ARGV[1] now in microseconds ("" for the server's clock), ARGV[2] for how many microseconds, 0 to ask
-- Reply: how many microseconds are left
--- use clock
local lasts = tonumber(ARGV[2])
local state = redis.pcall('GET', KEYS[1])
local stands = type(state) == 'string' and #state <= 16 and tonumber(string.match(state, '^%d+$')) or 0
local left = math.max(0, stands - now)
if lasts > left then
  redis.call('SET', KEYS[1], string.format('%d', now + lasts), 'PX', math.max(least_lifetime, math.ceil(lasts / 1000)))
  left = lasts
end
return left
