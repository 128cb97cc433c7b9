-- `n` sub-windows of `sub_window` microseconds and a weighted (or, strict = 1, whole) oldest one, as doubles, the newest
-- first. A record expires when none of them counts any more.
-- KEYS, ARGV, reply, variables: see decide.lua, refund.lua and late.lua.
--- state
-- counts s
--- decide
      local sub_window, n, strict = a, b, c == 1
      local rest = sub_window - now % sub_window
      local finish = now + rest + n * sub_window
      local format = n < 32 and sub('<ddddddddddddddddddddddddddddddddd', 1, n + 2) or '<' .. string.rep('d', n + 1)
      local ages, passed = {}, n + 1
      if expires > 0 then
        if #counts == 8 * (n + 1) then ages = { decode(format, counts) } end
        for age = 1, n + 1 do
          local count = ages[age]
          if not (count and count >= 0 and count <= MAX_COUNT) then
            repaired, expires, ages = repaired + 1, 0, {}
            break
          end
        end
        if expires > finish then -- the clock went back: earlier counts belong to this window
          is_changed, passed = true, 0
        elseif expires > 0 then
          passed = expires == finish and 0 or math.min(math.ceil((finish - expires) / sub_window), n + 1)
        end
      end
      expires = finish
      if passed > 0 then
        for age = n + 1, passed + 1, -1 do ages[age] = ages[age - passed] end
        for age = 1, passed do ages[age] = 0 end
      end

      local oldest, whole = ages[n + 1], 0
      for age = 1, n do whole = whole + ages[age] end
--- use weight
      if whole + weight + cost > limit then
--- use divided
        if not strict then
          local left
          weight, left = divided(oldest, rest, sub_window)
          if left > 0 then weight = weight + 1 end
        end
        if whole + weight + cost > limit then
          if counts_denied then
            local before = ages[1]
            ages[1] = math.min(before + cost, MAX_COUNT)
            whole = whole + ages[1] - before
          end
          retry = NEVER
          -- The first moment at which the cost fits, if nothing else happens until then.
          for age = 0, cost > limit and -1 or n + 1 do
            local room = limit - cost
            for j = 1, n - age do room = room - ages[j] end
            local weighed = ages[n + 1 - age] or 0
            if room >= 0 and weighed <= room then
              retry = rest + (age - 1) * sub_window
            elseif room >= 0 and not strict then
              retry = rest + age * sub_window - divided(room, sub_window, weighed)
            end
            if retry ~= NEVER then break end
          end
        end
      end
      remaining = limit - whole - weight
      if remaining < 0 then remaining = 0 end
      charged_remaining = remaining - cost
      local latest = 1
      while latest <= n and ages[latest] == 0 do latest = latest + 1 end
      if ages[latest] > 0 then reset = finish - (latest - 1) * sub_window - now end
      if retry == 0 then
        ages[1] = ages[1] + added
      elseif latest > 1 then -- as it stood when the last of them was counted, which expires earlier
        expires = finish - (latest - 1) * sub_window
        for age = 1, n + 1 do ages[age] = ages[age + latest - 1] or 0 end
      end
      counts = encode(format, unpack(ages, 1, n + 1))
--- refund
    local sub_window, n = a, b
    local format = '<' .. string.rep('d', n + 1)
    -- After a step back of the clock all of it counts in the newest.
    local age = math.max(0, (expires - (since - since % sub_window)) / sub_window - n - 1) + 1
    local ages = #counts == 8 * (n + 1) and { decode(format, counts) } or {}
    if ages[age] and age <= n + 1 then
      ages[age] = math.max(0, ages[age] - cost)
      counts, goes_back = encode(format, unpack(ages, 1, n + 1)), true
    end
--- late
    local sub_window, n = a, b
    local format = '<' .. string.rep('d', n + 1)
    local current = now - now % sub_window
    local finish, ages = current + (n + 1) * sub_window, {}
    local before = #counts == 8 * (n + 1) and { decode(format, counts) } or {}
    local passed = math.max(0, (finish - expires) / sub_window)
    for age = 1, n + 1 do ages[age] = before[age - passed] or 0 end
    local age = 1 + math.max(0, (current - (at - at % sub_window)) / sub_window)
    if age <= n + 1 then
      ages[age] = math.min(ages[age] + cost, MAX_COUNT)
      counts, expires, is_made = encode(format, unpack(ages, 1, n + 1)), finish, true
    end
