-- `n` sub-windows of `sub_window` microseconds and a weighted (or, strict = 1, whole) oldest one.
-- KEYS[i]: "index:newest count: … :oldest count". ARGV, reply: see decide.lua, refund.lua and late.lua.
--- decide
  elseif algorithm == 3 then
    local sub_window, n, strict = a, b, c
    local current = (now - now % sub_window) / sub_window
    charged_reset = (current + n + 1) * sub_window - now
    if n == 1 then -- the usual case, two counts and room for the cost: the same as below, without a table
      local index, newest, oldest = current, 0, 0
      if state then
        index, newest, oldest = string.match(state, '^(%d+):(%d+):(%d+)$')
        index, newest, oldest = tonumber(index), tonumber(newest), tonumber(oldest)
        if not index or newest > MAX_COUNT or oldest > MAX_COUNT then
          index = EXACT -- to be repaired below
        elseif index < current then
          newest, oldest = 0, index == current - 1 and newest or 0
        end
      end
      if index <= current then
        local weight = oldest
        if oldest > 0 and strict ~= 1 then -- ceil(oldest * rest / a); products from 2^52 on are left to the exact test below
          weight = oldest * ((current + 1) * sub_window - now)
          local part = weight % sub_window
          weight = weight < EXACT / 2 and (weight - part) / sub_window + (part > 0 and 1 or 0) or limit + 1
        end
        if newest + weight + cost <= limit then
          charged_state = string.format('%d:%d:%d', current, newest + cost, oldest)
          remaining = limit - newest - weight
          charged_remaining = remaining - cost
          reset = newest > 0 and charged_reset or oldest > 0 and charged_reset - sub_window or 0
        end
      end
    end
    if not charged_state then
      local counts, passed = {}, n + 1
      if state then
        local found = { string.match(state, '^(%d+)' .. string.rep(':(%d+)', n + 1) .. '$') }
        local index = tonumber(found[1])
        local sound = index and index < EXACT
        for age = 1, n + 1 do
          local count = tonumber(found[age + 1])
          sound = sound and count <= MAX_COUNT
          counts[age] = count
        end
        if not sound then
          repaired, counts = repaired + 1, {}
        elseif index > current then -- the clock went back: earlier counts belong to this window
          passed = 0
          refused_state = true
        else
          passed = math.min(current - index, n + 1)
        end
      end
      if passed > 0 then
        for age = n + 1, passed + 1, -1 do counts[age] = counts[age - passed] end
        for age = 1, passed do counts[age] = 0 end
      end

      local rest = strict == 1 and sub_window or (current + 1) * sub_window - now
      local oldest, whole = counts[n + 1], 0
      for age = 1, n do whole = whole + counts[age] end
      -- floor(x * y / z) and what is left, where the quotient is no more than x or y. A double holds 53 bits: a product of
      -- more is kept in two, the second of which is what the first has lost (T. J. Dekker, "A floating-point technique
      -- for extending the available precision", 1971).
      local function divided(x, y, z)
        if x * y < EXACT then return math.floor(x * y / z), x * y % z end
        local function product(u, v)
          local high, u1, v1 = u * v, u * 134217729, v * 134217729
          u1, v1 = u1 - (u1 - u), v1 - (v1 - v)
          local u2, v2 = u - u1, v - v1
          return high, u1 * v1 - high + u1 * v2 + u2 * v1 + u2 * v2
        end
        local high, low = product(x, y)
        local quotient = math.floor(high / z)
        local taken, lost = product(quotient, z)
        local left = high - taken + (low - lost)
        while left < 0 do quotient, left = quotient - 1, left + z end
        while left >= z do quotient, left = quotient + 1, left - z end
        return quotient, left
      end
      local function written() -- a number's own text has 14 digits
        local found = {}
        for age = 1, n + 1 do found[age] = string.format('%d', counts[age]) end
        return string.format('%d', current) .. ':' .. table.concat(found, ':')
      end
      if refused_state then refused_state = written() end
      local weight, left = divided(oldest, rest, sub_window)
      if left > 0 then weight = weight + 1 end
      if whole + weight + cost <= limit then
        counts[1] = counts[1] + cost
        charged_state = written()
        counts[1] = counts[1] - cost
      else
        if counts_denied then
          local before = counts[1]
          counts[1] = math.min(before + cost, MAX_COUNT)
          whole = whole + counts[1] - before
          refused_state = written()
        end
        retry = NEVER
        -- The first moment at which the cost fits, if nothing else happens until then.
        for age = 0, cost > limit and -1 or n + 1 do
          local room = limit - cost
          for j = 1, n - age do room = room - counts[j] end
          local weighed = counts[n + 1 - age] or 0
          if room >= 0 and weighed <= room then
            retry = (current + age) * sub_window - now
          elseif room >= 0 and strict ~= 1 then
            retry = (current + age + 1) * sub_window - divided(room, sub_window, weighed) - now
          end
          if retry ~= NEVER then break end
        end
      end

      remaining = math.max(0, limit - whole - weight)
      charged_remaining = remaining - cost
      for age = n + 1, 1, -1 do
        if counts[age] > 0 then reset = (current + n + 2 - age) * sub_window - now end
      end
    end
--- refund
  elseif algorithm == 3 then
    local sub_window = a
    local counts = {}
    for count in string.gmatch(state, '%d+') do counts[#counts + 1] = tonumber(count) end
    local age = (counts[1] or 0) - (since - since % sub_window) / sub_window
    local at = math.max(0, age) + 2 -- after a step back of the clock all of it counts in the newest
    if counts[at] then
      counts[at] = math.max(0, counts[at] - cost)
      for place, count in ipairs(counts) do counts[place] = string.format('%d', count) end
      left = table.concat(counts, ':')
    end
--- late
  elseif algorithm == 3 then
    local sub_window, n = a, b
    local current, before, counts = (now - now % sub_window) / sub_window, {}, {}
    for count in string.gmatch(state, '%d+') do before[#before + 1] = tonumber(count) end
    local passed = math.max(0, current - (before[1] or current))
    for j = 0, n do counts[j + 1] = j >= passed and before[2 + j - passed] or 0 end
    local age = 1 + math.max(0, current - (at - at % sub_window) / sub_window)
    if age <= n + 1 then
      counts[age] = math.min(counts[age] + cost, MAX_COUNT)
      for j, count in ipairs(counts) do counts[j] = string.format('%d', count) end
      stored_state = string.format('%d:', current) .. table.concat(counts, ':')
      lasts = (current + n + 1) * sub_window - now
    end
