-- Before the loop: appends `count` units taken now to a log, up to 1,000 a call because unpack has a limit.
-- KEYS, ARGV, reply: see prelude.lua and sliding_log.lua.
local function append(key, count)
  local newest = redis.call('ZREVRANGE', key, 0, 0)[1]
  local time = string.format('%d', now)
  local number = 0
  if newest and string.sub(newest, 1, #time + 1) == time .. ':' then
    number = tonumber(string.sub(newest, #time + 2)) or 0
  end
  local members = {}
  for j = 1, count do
    members[#members + 1] = time
    members[#members + 1] = string.format('%s:%010d', time, number + j)
    if #members == 2000 or j == count then
      redis.call('ZADD', key, unpack(members))
      members = {}
    end
  end
end
