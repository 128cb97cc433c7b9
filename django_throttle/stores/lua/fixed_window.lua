-- At most `limit` in each epoch-aligned window of `a`, or (calendar_window) between two moments of a calendar: a period
-- from `a` to `b`, the next until `c`.
-- KEYS[i]: "start in microseconds:count". ARGV, reply: see decide.lua, refund.lua and late.lua.
--- decide
  elseif algorithm == 1 or algorithm == 2 then
    local start, finish = now - now % a, now - now % a + a
    if algorithm == 2 then
      start, finish = now < b and a or b, now < b and b or c
    end
    local began, count = start, 0
    if state then
      local found_start, found_count = string.match(state, '^(%d+):(%d+)$')
      began, count = tonumber(found_start), tonumber(found_count)
      if not (began and began < EXACT and count <= MAX_COUNT) then
        repaired, began, count = repaired + 1, start, 0
      end
    end
    if began < start then
      count = 0
    elseif began > start then -- the clock went back: earlier counts belong to this window
      refused_state = string.format('%d:%d', start, count)
    end
    charged_reset = finish - now
    if not (count + cost <= limit) then
      retry = cost > limit and NEVER or charged_reset
      if counts_denied then
        count = math.min(count + cost, MAX_COUNT)
        refused_state = string.format('%d:%d', start, count)
      end
    else
      charged_state = string.format('%d:%d', start, count + cost)
    end
    remaining = math.max(0, limit - count)
    charged_remaining = remaining - cost
    reset = count > 0 and charged_reset or 0
--- refund
  elseif algorithm == 1 or algorithm == 2 then
    local start, count = string.match(state, '^(%d+):(%d+)$')
    if start and tonumber(start) <= since then -- else the window has ended
      left = string.format('%s:%d', start, math.max(0, count - cost))
    end
--- late
  elseif algorithm == 1 or algorithm == 2 then
    local start, finish = now - now % a, now - now % a + a
    if algorithm == 2 then
      start, finish = now < b and a or b, now < b and b or c
    end
    local began, count = string.match(state, '^(%d+):(%d+)$')
    if not began or tonumber(began) < start then count = 0 end
    if at >= start then
      stored_state, lasts = string.format('%d:%d', start, math.min(count + cost, MAX_COUNT)), finish - now
    end
