-- A bucket of `limit` units that refills evenly; a unit takes `unit`, the bucket `bucket`, both in 1/`fineness`
-- microseconds (GCRA; a token bucket with continuous refill; a leaky bucket as a meter and as a queue).
-- With algorithm 8 calls wait for their turn: only the last turn is given back, so that no other's moves.
-- With algorithm 7 costs are corrected when they are known; what was used beyond the bucket is owed, a bucket at most.
-- A record expires at the theoretical arrival time, rounded up; `fraction` is what that has beyond a whole microsecond,
-- and is not kept where the fineness is 1.
-- KEYS, ARGV, reply, variables: see decide.lua, refund.lua and backfill.lua.
--- read
    field_count = c > 1 and 1 or 0
    local fraction = field_count > 0 and fields[place + 2] or 0
--- decide
      local unit, bucket, fineness = a, b, c
      local used, most = (expires - now) * fineness, algorithm == 7 and 2 * b or b
      if fraction ~= 0 then
        if fraction > 0 and fraction < EXACT then
          -- One of another fineness, from before the limit was edited, may be too large.
          used = used - fineness + math.min(fraction, fineness - 1)
        else
          repaired, used = repaired + 1, 0
        end
      end
      if used < 0 then
        used = 0
      elseif used > most then -- the clock went back, or the rule became smaller: never owe more than a bucket
        used, is_changed = most, true
      end
      if cost <= limit and used + cost * unit <= bucket then
        charged_remaining = -cost
      else
        if counts_denied then used = math.min(used + math.min(cost, limit) * unit, most) end
        retry = cost > limit and NEVER or math.ceil((used + cost * unit - bucket) / fineness)
      end
      remaining = bucket - used
      remaining = remaining > 0 and (remaining - remaining % unit) / unit or 0
      charged_remaining = charged_remaining + remaining
      if fineness == 1 then
        reset = used
        if retry == 0 then used = used + added * unit end
        expires, fraction = now + used, 0
      else
        fraction = used % fineness
        reset = (used - fraction) / fineness + (fraction > 0 and 1 or 0)
        if retry == 0 then used = used + added * unit end
        fraction = used % fineness
        expires = now + (used - fraction) / fineness + (fraction > 0 and 1 or 0)
      end
--- store
      if field_count > 0 then fields[place + 2] = fraction end
--- refund
    local unit, fineness = a, c
    if algorithm ~= 8 or expires == charged_at + reset then -- else not the last turn
      -- What has drained since then is not given back.
      local before = math.max(0, (fineness == 1 and reset or reset - 1) * fineness - cost * unit)
      local back = cost * unit - math.max(0, (now - charged_at) * fineness - before)
      local used = (expires - now) * fineness - back
      if fraction > 0 then used = used - fineness + math.min(fraction, fineness - 1) end
      is_refunded = back > 0
      if is_refunded and used <= 0 then
        expires = 0
      elseif is_refunded then
        fraction = used % fineness
        expires = now + (used - fraction) / fineness + (fraction > 0 and 1 or 0)
      end
    end
--- backfill
    local unit, most, fineness = a, algorithm == 7 and 2 * b or b, c
    local used = (expires - now) * fineness
    if fraction > 0 then used = used - fineness + math.min(fraction, fineness - 1) end
    used = math.min(most, math.max(0, used) + math.max(0, cost * unit - (now - charged_at) * fineness))
    if used > 0 then
      fraction, is_charged = used % fineness, true
      expires = now + (used - fraction) / fineness + (fraction > 0 and 1 or 0)
    end
