-- Count the members that other processes have in a group. Remove processes that have been silent for too long.
--
-- KEYS[1]  group: HASH process -> "members:time in microseconds"
-- ARGV[1]  current time in microseconds; "" for the server's clock
-- ARGV[2]  calling process
-- ARGV[3]  silence after which a process is dead, in microseconds
-- Reply    number of members
--- use clock
local silence = tonumber(ARGV[3])
local members_of = redis.pcall('HGETALL', KEYS[1])
if members_of.err then -- a foreign value
  redis.call('DEL', KEYS[1])
  return 0
end
local total = 0
for i = 1, #members_of, 2 do
  local members, moment = string.match(members_of[i + 1], '^(%d+):(%d+)$')
  if not members or math.abs(now - moment) > silence then -- in the future if the clock moved backwards
    redis.call('HDEL', KEYS[1], members_of[i])
  elseif members_of[i] ~= ARGV[2] then
    total = total + members
  end
end
return total
