-- Return the control messages for a process. Messages stay until the process confirms them, so a lost reply loses none.
--
-- KEYS[1]     orders:<uid>: LIST of JSON; older versions use the same name
-- ARGV[1]     maximum number of messages
-- ARGV[2...]  messages that the process confirms
-- Reply       current time in microseconds, by the clock of `at`; then the messages, oldest first. Empty without
--             messages.
local queue = KEYS[1]
for i = 2, #ARGV do redis.pcall('LREM', queue, 1, ARGV[i]) end
local messages = redis.pcall('LRANGE', queue, 0, tonumber(ARGV[1]) - 1)
if messages.err then -- a foreign value
  redis.call('DEL', queue)
  return {}
end
if #messages == 0 then return messages end
local time = redis.call('TIME')
table.insert(messages, 1, time[1] * 1000000 + time[2])
return messages
