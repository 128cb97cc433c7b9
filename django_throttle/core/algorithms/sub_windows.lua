-- `n` sub-windows of `sub_window` microseconds and an older one, which is weighted, or counts in full if `strict` is 1.
-- Record: count of the newest sub-window (`newest`), sum of those in between (`between`), count of the oldest
-- (`oldest`), then the counts in between except the newest of these (`older`). Within a sub-window the first three
-- suffice. The record expires when no sub-window counts.
-- KEYS, ARGV, reply, variables: see decide.lua, refund.lua and backfill.lua.
--- read
    field_count = b > 2 and 4 or 3
    local newest, between, oldest = fields[place + 2], fields[place + 3], fields[place + 4]
    local older = field_count > 3 and fields[place + 5] or ''
    local max_count = is_large and MAX_LIMIT or (MAX_SMALL - MAX_SMALL % b) / b
--- decide
      local sub_window, n, strict, ages = a, b, c == 1, nil
      local rest = sub_window - now % sub_window
      local finish = now + rest + n * sub_window
      local is_valid = not is_large
        or (newest >= 0 and newest <= max_count and oldest >= 0 and oldest <= max_count
          and between >= 0 and between <= n * max_count)
      if is_valid and expires < finish then
--- use ages
        for age = 2, n do
          if not (ages[age] >= 0 and ages[age] <= MAX_LIMIT) then is_valid = false end
        end
        local shift = math.min(math.ceil((finish - expires) / sub_window), n + 1)
        for age = n + 1, shift + 1, -1 do ages[age] = ages[age - shift] end
        for age = 1, shift do ages[age] = 0 end
--- use aged
      elseif is_valid and expires > finish then -- the clock went back: earlier counts belong to this window
        is_changed = true
      end
      if not is_valid then
        repaired, newest, between, oldest, ages = repaired + 1, 0, 0, 0, nil
        older = string.rep('\0', #older)
      end
      expires = finish

      local whole = newest + between
--- use weight
      if whole + weight + cost > limit then
--- use divided
        if not strict then
          local left
          weight, left = divided(oldest, rest, sub_window)
          if left > 0 then weight = weight + 1 end
        end
        if whole + weight + cost > limit then
          if counts_denied then newest = math.min(newest + cost, max_count) end
          whole = newest + between
          retry = NEVER
--- use ages
          -- The first time at which the cost fits, if nothing else is charged until then.
          for age = 0, cost > limit and -1 or n + 1 do
            local room = limit - cost
            for j = 1, n - age do room = room - ages[j] end
            local oldest_count = ages[n + 1 - age] or 0
            if room >= 0 and oldest_count <= room then
              retry = rest + (age - 1) * sub_window
            elseif room >= 0 and not strict then
              retry = rest + age * sub_window - divided(room, sub_window, oldest_count)
            end
            if retry ~= NEVER then break end
          end
        end
      end
      remaining = limit - whole - weight
      if remaining < 0 then remaining = 0 end
      charged_remaining = remaining - cost
      local latest = 1
      if newest == 0 and between + oldest > 0 then
--- use ages
        while ages[latest] == 0 do latest = latest + 1 end
      end
      if newest + between + oldest > 0 then reset = finish - (latest - 1) * sub_window - now end
      if retry == 0 then
        newest = newest + added
      elseif latest > 1 then -- store the record of the latest sub-window with a count, which expires earlier
        expires = finish - (latest - 1) * sub_window
        for age = 1, n + 1 do ages[age] = ages[age + latest - 1] or 0 end
--- use aged
      end
--- store
      fields[place + 2], fields[place + 3], fields[place + 4] = newest, between, oldest
      if field_count > 3 then fields[place + 5] = older end
--- refund
    local sub_window, n, ages = a, b, nil
    -- If the clock went back, the newest sub-window has all counts.
    local age = math.max(0, (expires - (charged_at - charged_at % sub_window)) / sub_window - n - 1) + 1
    if age <= n + 1 then
--- use ages
      ages[age] = math.max(0, ages[age] - cost)
--- use aged
      is_refunded = true
    end
--- backfill
    local sub_window, n, ages = a, b, {}
    local current = now - now % sub_window
    local finish = current + (n + 1) * sub_window
--- use ages
    local former_ages, shift = ages, math.max(0, (finish - expires) / sub_window)
    ages = {}
    for age = 1, n + 1 do ages[age] = former_ages[age - shift] or 0 end
    local age = 1 + math.max(0, (current - (charged_at - charged_at % sub_window)) / sub_window)
    if age <= n + 1 then
      ages[age] = math.min(ages[age] + cost, max_count)
--- use aged
      expires, is_charged = finish, true
    end
