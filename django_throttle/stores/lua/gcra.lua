-- Fragment: a bucket of `burst` that refills evenly (GCRA; a token bucket with continuous refill).
-- KEYS[i]: theoretical arrival time in microseconds and three digits of its fraction, one integer.
-- ARGV[at+3..6]: burst, time of one unit and of the bucket in 1/fineness microseconds, fineness.
-- Reply: see prelude.lua.
algorithms.gcra = function(key, at, cost, counts_denied)
  local burst, unit = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local bucket, fineness = tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6])
  local used, kept = 0, nil
  local state = read(key)
  if state then
    if string.find(state, '^%d%d%d%d+$') then
      local arrival, fraction = tonumber(string.sub(state, 1, -4)), tonumber(string.sub(state, -3))
      used = max(0, (arrival - now) * fineness + fraction)
    else
      repair(key)
    end
  end
  local function arrival_after(time)
    return string.format('%.0f%03d', now + floor(time / fineness), time % fineness)
  end
  if used > bucket then -- the clock went back, or the rule became smaller: never owe more than a bucket
    used = bucket
    kept = arrival_after(used)
  end
  local retry = 0
  if not (cost <= burst and used + cost * unit <= bucket) then
    if counts_denied then
      used = min(used + min(cost, burst) * unit, bucket)
      kept = arrival_after(used)
    end
    retry = cost > burst and NEVER or ceil((used + cost * unit - bucket) / fineness)
  end
  local charged = used + cost * unit
  local value = retry == 0 and arrival_after(charged) or nil
  return floor((bucket - used) / unit), retry, ceil(used / fineness), ceil(charged / fineness), value, kept
end
