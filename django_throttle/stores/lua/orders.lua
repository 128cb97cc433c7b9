-- The orders that wait for a process. They stay until it says that it has them, so that no lost reply loses them.
-- KEYS: orders:<uid> (LIST of JSON). ARGV: the most that it wants, then the orders that it has had.
-- Reply: orders, the first first; before them now in microseconds, by the clock that they were given by. Else nothing.
local orders = KEYS[1]
for i = 2, #ARGV do redis.pcall('LREM', orders, 1, ARGV[i]) end
local found = redis.pcall('LRANGE', orders, 0, tonumber(ARGV[1]) - 1)
if found.err then -- not ours
  redis.call('DEL', orders)
  return {}
end
if #found == 0 then return found end
local time = redis.call('TIME')
table.insert(found, 1, time[1] * 1000000 + time[2])
return found
