      -- Charges a log. KEYS, ARGV, reply: see prelude.lua and sliding_log.lua.
      elseif algorithm == 10 then
        redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%d', now - a))
        append(key, cost)
        redis.call('PEXPIRE', key, lifetime(a))
        remaining, reset = remaining - cost, charged_reset
