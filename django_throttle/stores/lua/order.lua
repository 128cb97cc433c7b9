-- Orders for one process, which asks for them. Each is kept with the moment at which it was given, as `at`.
-- KEYS: orders:<uid> (LIST of JSON). ARGV: TTL in milliseconds, most that are kept, then orders.
-- Reply: 1 when they are kept, 0 when there are too many already: that process does not ask.
local orders = KEYS[1]
local there = redis.pcall('LLEN', orders)
if type(there) ~= 'number' then -- not ours
  redis.call('DEL', orders)
  there = 0
end
if there + #ARGV - 2 > tonumber(ARGV[2]) then return 0 end
local time = redis.call('TIME')
local at = string.format(',"at":%.0f}', time[1] * 1000000 + time[2])
for i = 3, #ARGV do redis.call('RPUSH', orders, string.sub(ARGV[i], 1, -2) .. at) end
if there == 0 then redis.call('PEXPIRE', orders, ARGV[1]) end -- else they would live for as long as more come
return 1
