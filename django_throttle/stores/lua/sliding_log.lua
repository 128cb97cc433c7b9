-- Fragment: exactly at most `limit` in any window.
-- KEYS[i]: sorted set, one member a unit, "time:number" scored by its time in microseconds; at most `limit`.
-- ARGV[at+3..4]: limit, window in microseconds. Reply: see prelude.lua.

-- Appends up to 1,000 members a call: unpack has a limit.
local function append(key, count)
  local newest = redis.call('ZREVRANGE', key, 0, 0)[1]
  local time = string.format('%.0f', now)
  local number = 0
  if newest and string.sub(newest, 1, #time + 1) == time .. ':' then
    number = tonumber(string.sub(newest, #time + 2)) or 0
  end
  local members = {}
  for i = 1, count do
    members[#members + 1] = time
    members[#members + 1] = string.format('%s:%010d', time, number + i)
    if #members == 2000 or i == count then
      redis.call('ZADD', key, unpack(members))
      members = {}
    end
  end
end

-- What the clock has let go of is removed when something is written, never by a refused call.
local function forget(key, window)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now - window))
end

-- The clock went back: what was taken later was taken now.
local function clamp(key)
  append(key, redis.call('ZREMRANGEBYSCORE', key, string.format('(%.0f', now), '+inf'))
end

algorithms.sliding_log = function(key, at, cost, counts_denied)
  local limit, window = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local newest = redis.pcall('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  if newest.err then
    repair(key)
    newest = {}
  end
  local latest, taken, gone = tonumber(newest[2]), 0, 0
  if latest then
    if latest > now and commit and cost > 0 then
      forget(key, window)
      clamp(key)
    end
    latest = min(latest, now)
    taken = redis.call('ZCOUNT', key, string.format('(%.0f', now - window), '+inf')
    gone = redis.call('ZCARD', key) - taken
  end
  local retry = 0
  if not (taken + cost <= limit) then
    if counts_denied then
      forget(key, window)
      append(key, min(cost, limit))
      redis.call('ZREMRANGEBYRANK', key, 0, -limit - 1)
      redis.call('PEXPIRE', key, lifetime(window))
      taken, gone, latest = redis.call('ZCARD', key), 0, now
    end
    if cost > limit then
      retry = NEVER
    else
      local turn = gone + taken + cost - limit - 1
      retry = min(now, tonumber(redis.call('ZRANGE', key, turn, turn, 'WITHSCORES')[2])) + window - now
    end
  end
  return max(0, limit - taken), retry, taken > 0 and latest + window - now or 0, window, retry == 0
end

writers.sliding_log = function(key, at, cost, step)
  local window = tonumber(ARGV[at + 4])
  forget(key, window)
  append(key, cost)
  redis.call('PEXPIRE', key, lifetime(window))
  return step[1] - cost, step[4]
end
