-- Fragment: at most `limit` in each epoch-aligned window.
-- KEYS[i]: "index:count". ARGV[at+3..4]: limit, window in microseconds. Reply: see prelude.lua.
algorithms.fixed_window = function(key, at, cost, counts_denied)
  local limit, window = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local current = floor(now / window)
  local index, count, kept = current, 0, nil
  local state = read(key)
  if state then
    local found = numbers(state, 2)
    if found then
      index, count = found[1], found[2]
    else
      repair(key)
    end
  end
  if index < current then
    index, count = current, 0
  elseif index > current then -- the clock went back: what was counted counts now
    index = current
    kept = string.format('%.0f:%.0f', index, count)
  end
  local left = (index + 1) * window - now
  local retry = 0
  if not (count + cost <= limit) then
    retry = cost > limit and NEVER or left
    if counts_denied then
      count = min(count + cost, MAX_COUNT)
      kept = string.format('%.0f:%.0f', index, count)
    end
  end
  local charged = retry == 0 and string.format('%.0f:%.0f', index, count + cost) or nil
  return max(0, limit - count), retry, count > 0 and left or 0, left, charged, kept
end
