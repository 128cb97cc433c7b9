-- At most `limit` in each window of `a` microseconds since the epoch, or (calendar_window) in a calendar period: the
-- current one from `a` to `b`, the next one until `c`. Record: `count`. It expires when its window ends.
-- KEYS, ARGV, reply, variables: see decide.lua, refund.lua and backfill.lua.
--- call
    for i = 4, last_charge, CHARGE do
      if request[i + 1] % 16 == 2 and (now < request[i + 4] or now >= request[i + 6]) then is_stale = true end
    end
--- read
    field_count = 1
    local count = fields[place + 2]
--- decide
      local finish = algorithm == 1 and now - now % a + a or now < b and b or c
      if is_large and not (count >= 0 and count <= MAX_LIMIT) then
        repaired, expires, count = repaired + 1, 0, 0
      end
      if expires < finish then
        count = 0
      elseif expires > finish then -- the clock went back: earlier counts belong to this window
        is_changed = true
      end
      expires = finish
      if count + cost <= limit then
        remaining, reset = limit - count, count > 0 and finish - now or 0
        charged_remaining, count = remaining - cost, count + added
      else
        retry = cost > limit and NEVER or finish - now
        if counts_denied then count = math.min(count + cost, is_large and MAX_LIMIT or MAX_SMALL) end
        remaining, reset = math.max(0, limit - count), count > 0 and finish - now or 0
      end
--- store
      fields[place + 2] = count
--- refund
    if cost == 0 or expires <= charged_at + reset then -- else the window has ended
      count, is_refunded = math.max(0, count - cost), true
    end
--- backfill
    local finish = algorithm == 1 and now - now % a + a or now < b and b or c
    local start = algorithm == 1 and finish - a or now < b and a or b
    if charged_at >= start then
      count = math.min((expires < finish and 0 or count) + cost, is_large and MAX_LIMIT or MAX_SMALL)
      expires, is_charged = finish, true
    end
