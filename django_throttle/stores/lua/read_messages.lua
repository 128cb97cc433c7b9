-- The control messages for a process. They stay until it confirms them, so that a lost reply loses none.
-- KEYS: orders:<uid> (LIST of JSON; older versions have this name too). ARGV: the most to return, then the messages that it confirms.
-- Reply: the time in microseconds by the clock of `at`, then the messages, oldest first; empty without messages.
local queue = KEYS[1]
for i = 2, #ARGV do redis.pcall('LREM', queue, 1, ARGV[i]) end
local found = redis.pcall('LRANGE', queue, 0, tonumber(ARGV[1]) - 1)
if found.err then -- a foreign value
  redis.call('DEL', queue)
  return {}
end
if #found == 0 then return found end
local time = redis.call('TIME')
table.insert(found, 1, time[1] * 1000000 + time[2])
return found
