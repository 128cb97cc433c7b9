      -- Charges a log. KEYS, ARGV, reply: see prelude.lua and sliding_log.lua.
      elseif algorithm == 10 then
        append(key, entry(redis.call('ZREVRANGE', key, 0, 0)[1]) or 0, cost)
        redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%d', now - a))
        redis.call('PEXPIRE', key, lifetime(a))
        remaining, reset = remaining - cost, charged_reset
