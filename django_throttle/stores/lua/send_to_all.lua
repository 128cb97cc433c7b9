-- Queue a control message for every live process, with the time of queueing, `at`.
--
-- KEYS[1]  live processes: ZSET uid -> time of the last beat; the lists orders:<uid> are derived from it
-- KEYS[2]  request log: HASH "first" and "last" -> time of the first and last request in microseconds; all keys share a
--          slot
-- ARGV[1]  TTL of a queue in milliseconds
-- ARGV[2]  maximum length of a queue
-- ARGV[3]  milliseconds in which an equal request is not queued again; 0 always queues, and logs nothing
-- ARGV[4]  TTL of the request log in milliseconds
-- ARGV[5]  control message
-- Reply    number of live processes, -1 if the request was queued a moment ago
--          milliseconds since the first request
local live, request_log = KEYS[1], KEYS[2]
local ttl, max_length, quiet_ms, message = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[5]
local time, since_first = redis.call('TIME'), 0
local now = time[1] * 1000000 + time[2]
if quiet_ms > 0 then
  local first_time, last_time = redis.pcall('HGET', request_log, 'first'), redis.pcall('HGET', request_log, 'last')
  first_time = tonumber(type(first_time) == 'string' and first_time)
  last_time = tonumber(type(last_time) == 'string' and last_time)
  -- Otherwise there is no log or a foreign value, or the clock moved backwards.
  if not (first_time and last_time and first_time <= last_time and last_time <= now) then
    redis.call('DEL', request_log)
    first_time, last_time = now, nil
  end
  since_first = math.floor((now - first_time) / 1000)
  if last_time and now - last_time < quiet_ms * 1000 then return { -1, since_first } end
  redis.call('HSET', request_log, 'first', string.format('%.0f', first_time), 'last', string.format('%.0f', now))
  redis.call('PEXPIRE', request_log, ARGV[4])
end
local stamped = string.format('%s,"at":%.0f}', string.sub(message, 1, -2), now)
local uids = redis.call('ZRANGE', live, 0, -1)
for _, uid in ipairs(uids) do
  local queue = string.gsub(live, 'live$', 'orders:') .. uid
  local length = redis.pcall('LLEN', queue)
  if type(length) ~= 'number' then -- a foreign value
    redis.call('DEL', queue)
    length = 0
  end
  if length < max_length then
    redis.call('RPUSH', queue, stamped)
    if length == 0 then redis.call('PEXPIRE', queue, ttl) end -- not extended by later messages
  end
end
return { #uids, since_first }
