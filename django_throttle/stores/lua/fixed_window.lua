  -- Fragment: at most `limit` in each epoch-aligned window of `a`, or (calendar_window) between two moments of a
  -- calendar: a period from `a` to `b`, the next until `c`.
  -- KEYS[i]: "start in microseconds:count". ARGV, reply: see prelude.lua.
  elseif algorithm == 1 or algorithm == 2 then
    local start, finish
    if algorithm == 1 then
      start = now - now % a
      finish = start + a
    elseif now < b then
      start, finish = a, b
    else
      start, finish = b, c
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
    elseif began > start then -- the clock went back: what was counted counts now
      kept = string.format('%d:%d', start, count)
    end
    charged_reset = finish - now
    if not (count + cost <= limit) then
      retry = cost > limit and NEVER or charged_reset
      if counts_denied then
        count = math.min(count + cost, MAX_COUNT)
        kept = string.format('%d:%d', start, count)
      end
    else
      charged = string.format('%d:%d', start, count + cost)
    end
    remaining = math.max(0, limit - count)
    reset = count > 0 and charged_reset or 0
