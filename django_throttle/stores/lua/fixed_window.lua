-- At most `limit` in each epoch-aligned window of `a`, or (calendar_window) between two moments of a calendar: a period
-- from `a` to `b`, the next until `c`. A record expires when its window ends.
-- KEYS, ARGV, reply, variables: see decide.lua, refund.lua and late.lua.
--- state
-- count
--- decide
      local finish = algorithm == 1 and now - now % a + a or now < b and b or c
      if IS_LARGE and not (count >= 0 and count <= MAX_COUNT) then
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
        if counts_denied then count = math.min(count + cost, MAX_COUNT) end
        remaining, reset = math.max(0, limit - count), count > 0 and finish - now or 0
      end
--- refund
    if cost == 0 or expires <= since + reset then -- else the window has ended
      count, goes_back = math.max(0, count - cost), true
    end
--- late
    local finish = algorithm == 1 and now - now % a + a or now < b and b or c
    local start = algorithm == 1 and finish - a or now < b and a or b
    if at >= start then
      count, expires, is_made = math.min((expires < finish and 0 or count) + cost, MAX_COUNT), finish, true
    end
