-- Fragment: n sub-windows and a weighted (or, strict, whole) oldest one.
-- KEYS[i]: "index:newest count: … :oldest count". ARGV[at+3..6]: limit, sub-window in microseconds,
-- n, 1 when strict. Reply: see prelude.lua.

-- floor(room * sub_window / oldest), split so that every product stays below 2^53.
local function longest(oldest, room, sub_window)
  if oldest <= room then return sub_window end
  local part = sub_window % oldest
  return room * ((sub_window - part) / oldest) + floor(room * part / oldest)
end

-- ceil(oldest * rest / sub_window): estimated in doubles, then put right by the exact test.
local function weigh(oldest, sub_window, rest)
  local weight = min(oldest, floor(oldest * (rest / sub_window)))
  while weight > 0 and rest <= longest(oldest, weight - 1, sub_window) do weight = weight - 1 end
  while rest > longest(oldest, weight, sub_window) do weight = weight + 1 end
  return weight
end

local function packed(index, counts)
  return string.format('%.0f:', index) .. table.concat(counts, ':')
end

-- The first moment at which cost fits, if nothing else happens until then.
local function wait_until(counts, cost, limit, sub_window, n, strict, current)
  for age = 0, n + 1 do
    local room = limit - cost
    for i = 1, n - age do room = room - counts[i] end
    if room >= 0 then
      local oldest = age <= n and counts[n + 1 - age] or 0
      if oldest <= room then return (current + age) * sub_window end
      if not strict then
        return (current + age + 1) * sub_window - longest(oldest, room, sub_window)
      end
    end
  end
end

algorithms.sliding_window = function(key, at, cost, counts_denied)
  local limit, sub_window, n = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
  local strict = ARGV[at + 6] == '1'
  local current = floor(now / sub_window)
  local counts, kept = {}, nil
  local state = read(key)
  local found = state and numbers(state, n + 2)
  if state and not found then repair(key) end
  local passed = found and min(max(0, current - found[1]), n + 1) or n + 1
  for i = 1, passed do counts[i] = 0 end
  for i = passed + 1, n + 1 do counts[i] = found[i + 1 - passed] end
  if found and found[1] > current then kept = packed(current, counts) end -- the clock went back

  local rest = strict and sub_window or (current + 1) * sub_window - now
  local whole = 0
  for i = 1, n do whole = whole + counts[i] end
  local room = limit - cost - whole
  local retry = 0
  if not (room >= 0 and rest <= longest(counts[n + 1], room, sub_window)) then
    if counts_denied then
      local before = counts[1]
      counts[1] = min(before + cost, MAX_COUNT)
      whole = whole + counts[1] - before
      kept = packed(current, counts)
    end
    retry = cost > limit and NEVER
      or wait_until(counts, cost, limit, sub_window, n, strict, current) - now
  end
  local remaining = max(0, limit - whole - weigh(counts[n + 1], sub_window, rest))
  local reset = 0
  for i = n + 1, 1, -1 do
    if counts[i] > 0 then reset = (current + n + 2 - i) * sub_window - now end
  end
  local charged
  if retry == 0 then
    counts[1] = counts[1] + cost
    charged = packed(current, counts)
  end
  return remaining, retry, reset, (current + n + 1) * sub_window - now, charged, kept
end
