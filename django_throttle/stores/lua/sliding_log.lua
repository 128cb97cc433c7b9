  -- Fragment: exactly at most `limit` in any window of `a`.
  -- KEYS[i]: sorted set, one member a unit, "time:number" scored by its time in microseconds; at most `limit`.
  -- What the clock has let go of is removed when something is written, never by a refused call. ARGV, reply: see
  -- prelude.lua.
  elseif algorithm == 10 then
    local newest = redis.pcall('ZREVRANGE', key, 0, 0, 'WITHSCORES')
    if newest.err then
      redis.call('DEL', key)
      repaired, newest = repaired + 1, {}
    end
    local latest, taken, gone = tonumber(newest[2]), 0, 0
    if latest then
      if latest > now and commit and cost > 0 then -- the clock went back: what was taken later was taken now
        redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%d', now - a))
        append(key, redis.call('ZREMRANGEBYSCORE', key, string.format('(%d', now), '+inf'))
      end
      latest = math.min(latest, now)
      taken = redis.call('ZCOUNT', key, string.format('(%d', now - a), '+inf')
      gone = redis.call('ZCARD', key) - taken
    end
    if not (taken + cost <= limit) then
      if counts_denied then
        redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%d', now - a))
        append(key, math.min(cost, limit))
        redis.call('ZREMRANGEBYRANK', key, 0, -limit - 1)
        redis.call('PEXPIRE', key, lifetime(a))
        taken, gone, latest = redis.call('ZCARD', key), 0, now
      end
      retry = NEVER
      if cost <= limit then
        local turn = gone + taken + cost - limit - 1
        retry = math.min(now, tonumber(redis.call('ZRANGE', key, turn, turn, 'WITHSCORES')[2])) + a - now
      end
    end
    remaining = math.max(0, limit - taken)
    reset = taken > 0 and latest + a - now or 0
    charged_reset, charged = a, retry == 0
