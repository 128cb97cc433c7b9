      -- Takes a lease. KEYS, ARGV, reply: see prelude.lua and concurrency.lua.
      elseif algorithm == 11 then
        redis.call('SADD', key, uid)
        redis.call('ZADD', key .. ':' .. uid, 'NX', string.format('%d', now), lease)
        redis.call('PEXPIRE', key, ttl)
        redis.call('PEXPIRE', key .. ':' .. uid, ttl)
        remaining, reset = math.max(0, limit - count_leases(key)), a
