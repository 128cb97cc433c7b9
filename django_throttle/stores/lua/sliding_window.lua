  -- Fragment: `b` sub-windows of `a` microseconds and a weighted (or, c = 1, whole) oldest one.
  -- KEYS[i]: "index:newest count: … :oldest count". ARGV, reply: see prelude.lua.
  elseif algorithm == 3 then
    local current = (now - now % a) / a
    charged_reset = (current + b + 1) * a - now
    if b == 1 then -- the usual case, two counts and room for the cost: the same as below, without a table
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
        if oldest > 0 and c ~= 1 then -- ceil(oldest * rest / a); products from 2^52 on are left to the exact test below
          weight = oldest * ((current + 1) * a - now)
          local part = weight % a
          weight = weight < EXACT / 2 and (weight - part) / a + (part > 0 and 1 or 0) or limit + 1
        end
        if newest + weight + cost <= limit then
          charged = string.format('%d:%d:%d', current, newest + cost, oldest)
          remaining = limit - newest - weight
          reset = newest > 0 and charged_reset or oldest > 0 and charged_reset - a or 0
        end
      end
    end
    if not charged then
      local counts, passed = {}, b + 1
      if state then
        local found = { string.match(state, '^(%d+)' .. string.rep(':(%d+)', b + 1) .. '$') }
        local index = tonumber(found[1])
        local sound = index and index < EXACT
        for age = 1, b + 1 do
          local count = tonumber(found[age + 1])
          sound = sound and count <= MAX_COUNT
          counts[age] = count
        end
        if not sound then
          repaired, counts = repaired + 1, {}
        elseif index > current then -- the clock went back: what was counted counts now
          passed = 0
          kept = true
        else
          passed = math.min(current - index, b + 1)
        end
      end
      if passed > 0 then
        for age = b + 1, passed + 1, -1 do counts[age] = counts[age - passed] end
        for age = 1, passed do counts[age] = 0 end
      end

      local rest = c == 1 and a or (current + 1) * a - now
      local oldest, whole = counts[b + 1], 0
      for age = 1, b do whole = whole + counts[age] end
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
        for age = 1, b + 1 do found[age] = string.format('%d', counts[age]) end
        return string.format('%d', current) .. ':' .. table.concat(found, ':')
      end
      if kept then kept = written() end
      local weight, left = divided(oldest, rest, a)
      if left > 0 then weight = weight + 1 end
      if whole + weight + cost <= limit then
        counts[1] = counts[1] + cost
        charged = written()
        counts[1] = counts[1] - cost
      else
        if counts_denied then
          local before = counts[1]
          counts[1] = math.min(before + cost, MAX_COUNT)
          whole = whole + counts[1] - before
          kept = written()
        end
        retry = NEVER
        -- The first moment at which the cost fits, if nothing else happens until then.
        for age = 0, cost > limit and -1 or b + 1 do
          local room = limit - cost
          for j = 1, b - age do room = room - counts[j] end
          local weighed = counts[b + 1 - age] or 0
          if room >= 0 and weighed <= room then
            retry = (current + age) * a - now
          elseif room >= 0 and c ~= 1 then
            retry = (current + age + 1) * a - divided(room, a, weighed) - now
          end
          if retry ~= NEVER then break end
        end
      end

      remaining = math.max(0, limit - whole - weight)
      for age = b + 1, 1, -1 do
        if counts[age] > 0 then reset = (current + b + 2 - age) * a - now end
      end
    end
