-- At most `limit` leases at once over all processes; else retry after `retry_after_us`.
-- KEYS[i]: index, a set of process uids. The leases of a process are a sorted set under KEYS[i]:<uid>, with the time of
-- each in microseconds as its score. This key is derived here; it has the same hash tag, and so is in the same slot.
-- ARGV, reply: see decide.lua.
--- functions
-- Return the number of leases under an index, and true if the caller's is among them.
local function count_leases(key)
  local held, has_own = 0, false
  local owners = redis.pcall('SMEMBERS', key)
  if owners.err then
    redis.call('DEL', key)
    repaired, owners = repaired + 1, {}
  end
  for _, owner in ipairs(owners) do
    local leases = redis.pcall('ZCARD', key .. ':' .. owner)
    if type(leases) ~= 'number' then -- not a sorted set: a foreign value
      redis.call('DEL', key .. ':' .. owner)
      repaired, leases = repaired + 1, 0
    end
    held = held + leases
    has_own = has_own or (owner == uid and redis.call('ZSCORE', key .. ':' .. uid, lease))
  end
  return held, has_own
end
--- decide
    local retry_after_us = a
    local held, has_own = count_leases(key)
    local wanted = has_own and 0 or cost
    retry = held + wanted <= limit and 0 or retry_after_us
    remaining = math.max(0, limit - held)
    reset, charged_reset, is_chargeable = held > 0 and retry_after_us or 0, retry_after_us, true
--- write
        redis.call('SADD', key, uid)
        local added = redis.call('ZADD', key .. ':' .. uid, 'NX', string.format('%d', now), lease)
        redis.call('PEXPIRE', key, ttl)
        redis.call('PEXPIRE', key .. ':' .. uid, ttl)
        charged_remaining = math.max(0, remaining - added)
