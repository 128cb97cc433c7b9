-- How many members the other processes have in a group. Removes processes that have been silent for long.
-- KEYS: the group (HASH process: "members:moment in microseconds").
-- ARGV: now in microseconds ("" for the server's clock), process that asks, silence that means dead in microseconds.
-- Reply: the number.
--- use clock
local silence = tonumber(ARGV[3])
local told = redis.pcall('HGETALL', KEYS[1])
if told.err then -- a foreign value
  redis.call('DEL', KEYS[1])
  return 0
end
local others = 0
for i = 1, #told, 2 do
  local members, moment = string.match(told[i + 1], '^(%d+):(%d+)$')
  if not members or math.abs(now - moment) > silence then -- a moment in the future: the clock went back
    redis.call('HDEL', KEYS[1], told[i])
  elseif told[i] ~= ARGV[2] then
    others = others + members
  end
end
return others
