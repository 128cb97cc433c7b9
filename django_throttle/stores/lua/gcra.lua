-- A bucket of `limit` units that refills evenly; a unit takes `unit`, the bucket `bucket`, both in 1/`fineness`
-- microseconds (GCRA; a token bucket with continuous refill; a leaky bucket as a meter and as a queue).
-- KEYS[i]: theoretical arrival time in microseconds; when fineness is not 1, of 16 digits, and then its fraction: three
-- digits while fineness has no more than 1,000 of them, else fifteen.
-- ARGV, reply: see decide.lua, refund.lua and late.lua.
--- decide
  elseif algorithm == 4 then
    local unit, bucket, fineness = a, b, c
    local used = 0
    if state then
      local arrival, fraction = tonumber(state), 0
      if not string.find(state, '^%d+$') then
        repaired, arrival = repaired + 1, now
      elseif #state > 16 then
        arrival, fraction = tonumber(string.sub(state, 1, 16)), tonumber(string.sub(state, 17))
        if fraction >= fineness then fraction = fineness - 1 end -- of another fineness, from before the limit was edited
      end
      used = (arrival - now) * fineness + fraction
      if used < 0 then used = 0 end
    end
    local function arrival_after(time)
      if fineness == 1 then return string.format('%d', now + time) end
      return string.format(fineness > 1000 and '%016d%015d' or '%016d%03d', now + math.floor(time / fineness), time % fineness)
    end
    if used > bucket then -- the clock went back, or the rule became smaller: never owe more than a bucket
      used = bucket
      refused_state = arrival_after(used)
    end
    local after = used + cost * unit
    if cost <= limit and after <= bucket then
      charged_state = arrival_after(after)
    else
      if counts_denied then
        used = math.min(used + math.min(cost, limit) * unit, bucket)
        refused_state = arrival_after(used)
      end
      retry = cost > limit and NEVER or math.ceil((used + cost * unit - bucket) / fineness)
    end
    remaining = math.floor((bucket - used) / unit)
    charged_remaining = remaining - cost
    reset, charged_reset = math.ceil(used / fineness), math.ceil(after / fineness)
--- refund
  elseif algorithm == 4 and string.find(state, '^%d+$') then
    local unit, fineness = a, c
    local arrival, fraction = tonumber(state), 0
    if #state > 16 then arrival, fraction = tonumber(string.sub(state, 1, 16)), tonumber(string.sub(state, 17)) end
    fraction = math.min(fraction, fineness - 1) -- of another fineness, from before the limit was edited
    -- What has drained since then is not given back.
    local before = math.max(0, (fineness == 1 and reset or reset - 1) * fineness - cost * unit)
    local back = cost * unit - math.max(0, (now - since) * fineness - before)
    local used = (arrival - now) * fineness + fraction - back
    if back > 0 and used <= 0 then
      left = ''
    elseif back > 0 then
      left = fineness == 1 and string.format('%d', now + used)
        or string.format(fineness > 1000 and '%016d%015d' or '%016d%03d', now + math.floor(used / fineness), used % fineness)
    end
--- late
  elseif algorithm == 4 then
    local unit, bucket, fineness = a, b, c
    local arrival, fraction = now, 0
    if string.find(state, '^%d+$') then
      arrival, fraction = tonumber(string.sub(state, 1, 16)), tonumber(string.sub(state, 17)) or 0
    end
    local used = math.max(0, (arrival - now) * fineness + math.min(fraction, fineness - 1))
    used = math.min(bucket, used + math.max(0, cost * unit - (now - at) * fineness))
    if used > 0 then
      stored_state = fineness == 1 and string.format('%d', now + used)
        or string.format(fineness > 1000 and '%016d%015d' or '%016d%03d', now + math.floor(used / fineness), used % fineness)
      lasts = math.ceil(used / fineness)
    end
