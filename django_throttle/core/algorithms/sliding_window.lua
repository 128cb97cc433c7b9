-- A window of `sub_window` microseconds and the window before, which is weighted, or counts in full if `strict` is 1.
-- sub_windows.lua is for several sub-windows. Record: counts `newest` and `oldest`. It expires when neither counts.
-- KEYS, ARGV, reply, variables: see decide.lua, refund.lua and backfill.lua.
--- read
    field_count = 2
    local newest, oldest = fields[place + 2], fields[place + 3]
--- decide
      local sub_window, strict = a, c == 1
      local rest = sub_window - now % sub_window
      local finish = now + rest + sub_window
      if is_large and not (newest >= 0 and newest <= MAX_LIMIT and oldest >= 0 and oldest <= MAX_LIMIT) then
        repaired, expires, newest, oldest = repaired + 1, 0, 0, 0
      end
      if expires < finish then
        newest, oldest = 0, expires == finish - sub_window and newest or 0
      elseif expires > finish then -- the clock went back: earlier counts belong to this window
        is_changed = true
      end
      expires = finish
--- use weight
      if newest + weight + cost > limit then
--- use divided
        if not strict then
          local left
          weight, left = divided(oldest, rest, sub_window)
          if left > 0 then weight = weight + 1 end
        end
        if newest + weight + cost > limit then
          if counts_denied then newest = math.min(newest + cost, is_large and MAX_LIMIT or MAX_SMALL) end
          -- The first time at which the cost fits, if nothing else is charged until then.
          local room = limit - cost
          if room < 0 then
            retry = NEVER
          elseif not strict and newest <= room then
            retry = rest - divided(room - newest, sub_window, oldest)
          elseif newest <= room then
            retry = rest
          elseif strict then
            retry = rest + sub_window
          else
            retry = rest + sub_window - divided(room, sub_window, newest)
          end
        end
      end
      remaining = limit - newest - weight
      if remaining < 0 then remaining = 0 end
      charged_remaining = remaining - cost
      if newest > 0 then
        reset = finish - now
      elseif oldest > 0 then
        reset = rest
      end
      if retry == 0 then
        newest = newest + added
      elseif newest == 0 then -- store the record of the last window, which expires earlier
        newest, oldest, expires = oldest, 0, finish - sub_window
      end
--- store
      fields[place + 2], fields[place + 3] = newest, oldest
--- refund
    local sub_window = a
    -- If the clock went back, the newest window has all counts.
    local ended = expires - (charged_at - charged_at % sub_window + 2 * sub_window)
    if ended <= 0 then
      newest, is_refunded = math.max(0, newest - cost), true
    elseif ended == sub_window then
      oldest, is_refunded = math.max(0, oldest - cost), true
    end
--- backfill
    local sub_window = a
    local finish = now - now % sub_window + 2 * sub_window
    if expires < finish then newest, oldest = 0, expires == finish - sub_window and newest or 0 end
    local ended = finish - (charged_at - charged_at % sub_window + 2 * sub_window)
    if ended <= 0 then
      newest = math.min(newest + cost, is_large and MAX_LIMIT or MAX_SMALL)
    elseif ended == sub_window then
      oldest = math.min(oldest + cost, is_large and MAX_LIMIT or MAX_SMALL)
    end
    if ended <= sub_window then expires, is_charged = finish, true end
