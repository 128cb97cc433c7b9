  -- Fragment: a bucket of `limit` units that refills evenly; a unit takes `a`, the bucket `b`, both in 1/c
  -- microseconds (GCRA; a token bucket with continuous refill; a leaky bucket as a meter and as a queue).
  -- KEYS[i]: theoretical arrival time in microseconds; when c is not 1, of 16 digits, and then its fraction: three
  -- digits while c has no more than 1,000 of them, else fifteen. ARGV, reply: see prelude.lua.
  elseif algorithm == 4 then
    local used = 0
    if state then
      local arrival, fraction = tonumber(state), 0
      if not string.find(state, '^%d+$') then
        repaired, arrival = repaired + 1, now
      elseif #state > 16 then
        arrival, fraction = tonumber(string.sub(state, 1, 16)), tonumber(string.sub(state, 17))
        if fraction >= c then fraction = c - 1 end -- of another fineness, from before the limit was edited
      end
      used = (arrival - now) * c + fraction
      if used < 0 then used = 0 end
    end
    local function arrival_after(time)
      if c == 1 then return string.format('%d', now + time) end
      return string.format(c > 1000 and '%016d%015d' or '%016d%03d', now + math.floor(time / c), time % c)
    end
    if used > b then -- the clock went back, or the rule became smaller: never owe more than a bucket
      used = b
      kept = arrival_after(used)
    end
    local after = used + cost * a
    if cost <= limit and after <= b then
      charged = arrival_after(after)
    else
      if counts_denied then
        used = math.min(used + math.min(cost, limit) * a, b)
        kept = arrival_after(used)
      end
      retry = cost > limit and NEVER or math.ceil((used + cost * a - b) / c)
    end
    remaining = math.floor((b - used) / a)
    reset, charged_reset = math.ceil(used / c), math.ceil(after / c)
