-- At most `limit` in any window of `window` microseconds, exactly.
-- KEYS[i]: sorted set with a member "last:cost" for each call, whose score is the time of the call in microseconds.
-- Units are numbered in the order of the charges; `last` is the number of the call's last unit, so the cost of several
-- calls follows from two members. The log has at most `limit` units. Calls that have left the window are removed when
-- a call is written.
-- ARGV, reply: see decide.lua, refund.lua and backfill.lua.
--- functions
-- Return the number of a member's last unit, and its cost.
local function entry(member)
  local last, own = string.match(member or '', '^(%d+):(%d+)$')
  return tonumber(last), tonumber(own)
end

-- Add a call of this cost at the present time to a log whose last unit is `last`.
local function append(key, last, cost)
  redis.call('ZADD', key, string.format('%d', now), string.format('%016d:%d', last + cost, cost))
end

-- Return the rank of the member with the unit of this number, in a log whose last unit is `last`. Each member has at
-- least one unit, which bounds the binary search; it ends at once if all calls cost 1.
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

-- Return the microseconds until a cost fits into a log whose last unit is `last`. `oldest` is the oldest member in the
-- window, with its score, and `first` the number of its last unit.
local function wait_for(key, cost, limit, window, last, oldest, first)
  local unit = last + cost - limit -- the last unit that has to leave the window
  if not first or unit > first then
    local rank = rank_of(key, unit, last)
    oldest = redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')
  end
  return math.min(now, tonumber(oldest[2])) + window - now
end

-- Set the time of calls in the future to now, in the same order. 1,000 at a time, because unpack has a limit.
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
--- decide
    local window = a
    local newest = redis.pcall('ZREVRANGE', key, 0, 0, 'WITHSCORES')
    local last = entry(newest[1])
    if newest.err or newest[1] and not last then
      redis.call('DEL', key)
      repaired, newest = repaired + 1, {}
    end
    local latest, taken, oldest, first, own = tonumber(newest[2]), 0, nil, nil, nil
    if latest then
      if latest > now and commit and cost > 0 then bring_back(key) end -- the clock went back
      latest = math.min(latest, now)
      local after = string.format('(%d', now - window)
      oldest = redis.call('ZRANGEBYSCORE', key, after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      first, own = entry(oldest[1])
      taken = first and math.max(0, last - first + own) or 0
    end
    if not (taken + cost <= limit) then
      if counts_denied then
        redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%d', now - window))
        local added = math.min(cost, limit)
        append(key, last or 0, added)
        last, latest, taken = (last or 0) + added, now, math.min(taken + added, limit)
        -- The oldest call that remains may keep a part of its cost.
        local rank = rank_of(key, last - taken + 1, last)
        oldest = redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')
        first, own = entry(oldest[1])
        local is_cut = own and first - own < last - taken
        if is_cut or rank > 0 then redis.call('ZREMRANGEBYRANK', key, 0, is_cut and rank or rank - 1) end
        if is_cut then redis.call('ZADD', key, oldest[2], string.format('%016d:%d', first, first - last + taken)) end
        redis.call('PEXPIRE', key, lifetime(window))
      end
      retry = cost > limit and NEVER or wait_for(key, cost, limit, window, last, oldest, first)
    end
    remaining = math.max(0, limit - taken)
    reset = taken > 0 and latest + window - now or 0
    charged_reset, is_chargeable = window, retry == 0
--- write
        local newest = redis.call('ZREVRANGE', key, 0, 0)[1]
        local last = newest and string.match(newest, '^%d+') or 0
        redis.call('ZADD', key, string.format('%d', now), string.format('%016d:%d', last + cost, cost))
        redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%d', now - charged_reset))
        redis.call('PEXPIRE', key, lifetime(charged_reset))
--- wait
        local last = entry(redis.call('ZREVRANGE', key, 0, 0)[1])
        retry = wait_for(key, cost, limit, charged_reset, last)
--- refund
    -- Later calls have their units renumbered. Units of the same microsecond are interchangeable.
    local later = redis.pcall('ZRANGEBYSCORE', key, string.format('%d', charged_at), '+inf', 'WITHSCORES')
    local refunded_units = 0
    for j = 1, #later, 2 do -- the error for a foreign value has no entries
      local last, own = string.match(later[j], '^(%d+):(%d+)$')
      local less = last and tonumber(later[j + 1]) == charged_at and math.min(own, cost - refunded_units) or 0
      refunded_units = refunded_units + less
      if refunded_units == 0 then break end
      if last and own - less > 0 then -- before ZREM, because an empty log would lose its time to live
        redis.call('ZADD', key, later[j + 1], string.format('%016d:%d', last - refunded_units, own - less))
      end
      redis.call('ZREM', key, later[j])
    end
    if refunded_units > 0 then refunded = refunded + 1 end
--- backfill
    local window = a
    -- Insert the call in the order of time. Of more units than the limit, the newest are kept.
    if charged_at > now - window then
      local entries = redis.pcall('ZRANGEBYSCORE', key, string.format('(%d', now - window), '+inf', 'WITHSCORES')
      local calls, is_inserted = {}, false
      for j = 1, #entries, 2 do -- the error for a foreign value has no entries
        local time, own = math.min(now, tonumber(entries[j + 1])), tonumber(string.match(entries[j], ':(%d+)$'))
        if not is_inserted and time > charged_at then
          calls[#calls + 1], is_inserted = { charged_at, cost }, true
        end
        calls[#calls + 1] = own and { time, own }
      end
      if not is_inserted then calls[#calls + 1] = { charged_at, cost } end
      local units, last = 0, 0
      for _, call in ipairs(calls) do units = units + call[2] end
      redis.call('DEL', key)
      for _, call in ipairs(calls) do
        local own = math.max(0, call[2] - math.max(0, units - limit))
        units, last = units - call[2], last + own
        if own > 0 then
          redis.call('ZADD', key, string.format('%d', call[1]), string.format('%016d:%d', last, own))
        end
      end
      redis.call('PEXPIRE', key, lifetime(window))
      charged = charged + 1
    end
