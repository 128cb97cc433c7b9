-- Before the loop: what the entries of a log say; a log's members are "end:cost", see sliding_log.lua.
-- KEYS, ARGV, reply: see prelude.lua and sliding_log.lua.
local function entry(member)
  local last, own = string.match(member or '', '^(%d+):(%d+)$')
  return tonumber(last), tonumber(own)
end

-- Adds a call of this cost, taken now, to a log whose units end at `last`.
local function append(key, last, cost)
  redis.call('ZADD', key, string.format('%d', now), string.format('%016d:%d', last + cost, cost))
end

-- The rank of the entry with the unit of this number, in a log whose units end at `last`: the first that does not end
-- before it. As each entry has a unit or more, little is left to search where calls cost one.
local function rank_of(key, unit, last)
  local newest = redis.call('ZCARD', key) - 1
  local low = math.max(0, newest - (last - unit))
  local high = math.max(low, math.min(newest, unit - (entry(redis.call('ZRANGE', key, 0, 0)[1]) or 0)))
  while low < high do
    local middle = math.floor((low + high) / 2)
    if (entry(redis.call('ZRANGE', key, middle, middle)[1]) or 0) < unit then low = middle + 1 else high = middle end
  end
  return low
end

-- What was taken later than now was taken now, in the same order; 1,000 at a time because unpack has a limit.
local function bring_back(key)
  local later = redis.call('ZRANGEBYSCORE', key, string.format('(%d', now), '+inf')
  local time, members = string.format('%d', now), {}
  for j, member in ipairs(later) do
    members[#members + 1] = time
    members[#members + 1] = member
    if #members == 2000 or j == #later then
      redis.call('ZADD', key, unpack(members))
      members = {}
    end
  end
end
