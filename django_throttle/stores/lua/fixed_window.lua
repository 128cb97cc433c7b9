-- Fragment: at most `limit` in each epoch-aligned window.
-- KEYS[i]: "start in microseconds:count". ARGV[at+3..4]: limit, window in microseconds. Reply: see prelude.lua.

-- The step of a window from start to finish, in microseconds.
local function window_step(key, cost, limit, start, finish, counts_denied)
  local began, count, kept = start, 0, nil
  local state = read(key)
  if state then
    local found = numbers(state, 2)
    if found then
      began, count = found[1], found[2]
    else
      repair(key)
    end
  end
  if began < start then
    count = 0
  elseif began > start then -- the clock went back: what was counted counts now
    kept = string.format('%.0f:%.0f', start, count)
  end
  local left = finish - now
  local retry = 0
  if not (count + cost <= limit) then
    retry = cost > limit and NEVER or left
    if counts_denied then
      count = min(count + cost, MAX_COUNT)
      kept = string.format('%.0f:%.0f', start, count)
    end
  end
  local charged = retry == 0 and string.format('%.0f:%.0f', start, count + cost) or nil
  return max(0, limit - count), retry, count > 0 and left or 0, left, charged, kept
end

algorithms.fixed_window = function(key, at, cost, counts_denied)
  local window = tonumber(ARGV[at + 4])
  local start = now - now % window
  return window_step(key, cost, tonumber(ARGV[at + 3]), start, start + window, counts_denied)
end
