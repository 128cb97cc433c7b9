-- Return the live processes with their introductions.
--
-- KEYS[1]  live processes: ZSET uid -> time of the last beat
-- KEYS[2]  meta: HASH uid -> introduction, JSON; both keys share a slot
-- ARGV     none
-- Reply    uid and introduction of each process, alternating; the introduction is "" if it is missing
local reply = {}
for _, uid in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  reply[#reply + 1] = uid
  reply[#reply + 1] = redis.call('HGET', KEYS[2], uid) or ''
end
return reply
