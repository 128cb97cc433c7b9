-- Add a run to the queue for a slot, at its end or front. A run that is already queued keeps its place.
--
-- KEYS[1]  lease index. Derived from it, in the same slot:
--          index:>          queue: ZSET name -> order
--          index:>:<name>   payload of a run: STRING
-- ARGV[1]  current time in microseconds; "" for the server's clock
-- ARGV[2]  name of the run
-- ARGV[3]  payload
-- ARGV[4]  TTL in milliseconds
-- ARGV[5]  "1" adds at the front
-- ARGV[6]  maximum length of the queue
-- Reply    place in the queue, from 1 on; 0 if the queue is full
--- use clock
local waiting, ttl = KEYS[1] .. ':>', math.max(least_lifetime, tonumber(ARGV[4]))
local place = redis.pcall('ZSCORE', waiting, ARGV[2])
if type(place) == 'table' then -- an error reply: a foreign value
  redis.call('DEL', waiting)
  place = false
end
local length = redis.call('ZCARD', waiting)
if not place then
  if length >= tonumber(ARGV[6]) then return 0 end
  local score = now
  if length > 0 then
    if ARGV[5] == '1' then
      score = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2] - 1
    else
      score = math.max(now, redis.call('ZRANGE', waiting, -1, -1, 'WITHSCORES')[2] + 1)
    end
  end
  redis.call('ZADD', waiting, string.format('%d', score), ARGV[2])
  length = length + 1
end
redis.call('PEXPIRE', waiting, ttl)
redis.call('SET', waiting .. ':' .. ARGV[2], ARGV[3], 'PX', ttl)
return place and redis.call('ZCOUNT', waiting, '-inf', place) or ARGV[5] == '1' and 1 or length
