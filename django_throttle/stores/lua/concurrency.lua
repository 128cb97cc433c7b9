  -- Fragment: at most `limit` leases at once, summed over the processes that hold them; else ask again after `a`.
  -- KEYS[i]: the index, a set of process uids. Each process' leases are a sorted set, lease -> taken at
  -- (microseconds), under KEYS[i]:<uid>: derived here, with the same hash tag and so in the same slot.
  -- ARGV, reply: see prelude.lua.
  elseif algorithm == 11 then
    local held, mine = count_leases(key)
    local wanted = mine and 0 or cost
    retry = held + wanted <= limit and 0 or a
    remaining = math.max(0, limit - held)
    reset, charged_reset, charged = held > 0 and a or 0, a, true
