-- Fragment: a bucket refilled a whole interval at a time, counted from its first use.
-- KEYS[i]: "refilled at in microseconds:units". ARGV[at+3..5]: burst, interval in microseconds, units it brings.
-- Reply: see prelude.lua.
algorithms.interval_bucket = function(key, at, cost, counts_denied)
  local burst, interval, brings = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
  local since, units, kept = now, burst, nil
  local state = read(key)
  if state then
    local found = numbers(state, 2)
    if found then
      since, units = found[1], min(found[2], burst)
    else
      repair(key)
    end
  end
  if since > now then -- the clock went back: the interval begins again
    since = now
    kept = string.format('%.0f:%.0f', since, units)
  end
  local refills = floor((now - since) / interval)
  units = min(burst, units + min(refills, ceil(burst / brings)) * brings)
  since = units == burst and now or since + refills * interval
  local retry = 0
  if not (cost <= units) then
    if counts_denied then
      units = max(0, units - cost)
      kept = string.format('%.0f:%.0f', since, units)
    end
    retry = cost > burst and NEVER or since + ceil((cost - units) / brings) * interval - now
  end
  local full = since + ceil((burst - units) / brings) * interval - now
  local charged_reset = since + ceil((burst - units + cost) / brings) * interval - now
  local charged = retry == 0 and string.format('%.0f:%.0f', since, units - cost) or nil
  return units, retry, units < burst and full or 0, charged_reset, charged, kept
end
