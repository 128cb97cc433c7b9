  -- Fragment: exactly at most `limit` in any window of `a`.
  -- KEYS[i]: sorted set, one member a call, "end:cost" scored by its time in microseconds. Units are numbered as they
  -- are taken, and a call has those up to its end, so that two entries say what all between them cost; the log has at
  -- most `limit` units. What the clock has let go of is removed when something is written, never by a refused call.
  -- ARGV, reply: see prelude.lua.
  elseif algorithm == 10 then
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
      local after = string.format('(%d', now - a)
      oldest = redis.call('ZRANGEBYSCORE', key, after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      first, own = entry(oldest[1])
      taken = first and math.max(0, last - first + own) or 0
    end
    if not (taken + cost <= limit) then
      if counts_denied then
        redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%d', now - a))
        local added = math.min(cost, limit)
        append(key, last or 0, added)
        last, latest, taken = (last or 0) + added, now, math.min(taken + added, limit)
        -- The oldest that is kept may keep a part of its cost.
        local rank = rank_of(key, last - taken + 1, last)
        oldest = redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')
        first, own = entry(oldest[1])
        local is_cut = own and first - own < last - taken
        if is_cut or rank > 0 then redis.call('ZREMRANGEBYRANK', key, 0, is_cut and rank or rank - 1) end
        if is_cut then redis.call('ZADD', key, oldest[2], string.format('%016d:%d', first, first - last + taken)) end
        redis.call('PEXPIRE', key, lifetime(a))
      end
      retry = NEVER
      if cost <= limit then
        local unit = last + cost - limit -- the last of those that must be gone
        if not first or unit > first then
          local rank = rank_of(key, unit, last)
          oldest = redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')
        end
        retry = math.min(now, tonumber(oldest[2])) + a - now
      end
    end
    remaining = math.max(0, limit - taken)
    reset = taken > 0 and latest + a - now or 0
    charged_reset, charged = a, retry == 0
