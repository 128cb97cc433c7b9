-- Queue control messages for a process. Each message is stored with the time of queueing, `at`.
--
-- KEYS[1]     orders:<uid>: LIST of JSON
-- ARGV[1]     TTL in milliseconds
-- ARGV[2]     maximum length of the queue
-- ARGV[3...]  control messages
-- Reply       1 if queued; 0 if the queue is full, because the process does not read it
local queue = KEYS[1]
local length = redis.pcall('LLEN', queue)
if type(length) ~= 'number' then -- a foreign value
  redis.call('DEL', queue)
  length = 0
end
if length + #ARGV - 2 > tonumber(ARGV[2]) then return 0 end
local time = redis.call('TIME')
local stamp = string.format(',"at":%.0f}', time[1] * 1000000 + time[2])
for i = 3, #ARGV do redis.call('RPUSH', queue, string.sub(ARGV[i], 1, -2) .. stamp) end
if length == 0 then redis.call('PEXPIRE', queue, ARGV[1]) end -- not extended by later messages
return 1
