-- Queues control messages for one process, which reads them. Each is stored with the time of its queueing, `at`.
-- KEYS: orders:<uid> (LIST of JSON). ARGV: TTL in milliseconds, most in the queue, then control messages.
-- Reply: 1 when they are queued, 0 when the queue is full: that process does not read.
local queue = KEYS[1]
local there = redis.pcall('LLEN', queue)
if type(there) ~= 'number' then -- a foreign value
  redis.call('DEL', queue)
  there = 0
end
if there + #ARGV - 2 > tonumber(ARGV[2]) then return 0 end
local time = redis.call('TIME')
local at = string.format(',"at":%.0f}', time[1] * 1000000 + time[2])
for i = 3, #ARGV do redis.call('RPUSH', queue, string.sub(ARGV[i], 1, -2) .. at) end
if there == 0 then redis.call('PEXPIRE', queue, ARGV[1]) end -- else each new one would keep the old ones alive
return 1
