-- A bucket of `limit` units that refills evenly: GCRA, a token bucket with continuous refill, a leaky bucket. The times
-- of a unit (`unit`) and of all units (`bucket`) are in 1/`fineness` microseconds.
-- Algorithm 8 is a queue of calls: only the last queue slot is refunded, so that no other slot moves.
-- Algorithm 7 has costs that are corrected later: units beyond the bucket are owed, up to another bucket.
-- Record: `fraction`, unless the fineness is 1. It expires at the theoretical arrival time, rounded up; `fraction` is
-- the part of that beyond a whole microsecond.
-- KEYS, ARGV, reply, variables: see decide.lua, refund.lua and backfill.lua.
--- read
    field_count = c > 1 and 1 or 0
    local fraction = field_count > 0 and fields[place + 2] or 0
--- decide
      local unit, bucket, fineness = a, b, c
      local used, max_used = (expires - now) * fineness, algorithm == 7 and 2 * b or b
      if fraction ~= 0 then
        if fraction > 0 and fraction < EXACT then
          -- A fraction in another fineness, from before the limit was edited, may be too large.
          used = used - fineness + math.min(fraction, fineness - 1)
        else
          repaired, used = repaired + 1, 0
        end
      end
      if used < 0 then
        used = 0
      elseif used > max_used then -- the clock went back, or the limit was lowered
        used, is_changed = max_used, true
      end
      if cost <= limit and used + cost * unit <= bucket then
        charged_remaining = -cost
      else
        if counts_denied then used = math.min(used + math.min(cost, limit) * unit, max_used) end
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
    if algorithm ~= 8 or expires == charged_at + reset then -- else not the last queue slot
      -- Units that have drained since the charge are not refunded.
      local used_before = math.max(0, (fineness == 1 and reset or reset - 1) * fineness - cost * unit)
      local refund_parts = cost * unit - math.max(0, (now - charged_at) * fineness - used_before)
      local used = (expires - now) * fineness - refund_parts
      if fraction > 0 then used = used - fineness + math.min(fraction, fineness - 1) end
      is_refunded = refund_parts > 0
      if is_refunded and used <= 0 then
        expires = 0
      elseif is_refunded then
        fraction = used % fineness
        expires = now + (used - fraction) / fineness + (fraction > 0 and 1 or 0)
      end
    end
--- backfill
    local unit, max_used, fineness = a, algorithm == 7 and 2 * b or b, c
    local used = (expires - now) * fineness
    if fraction > 0 then used = used - fineness + math.min(fraction, fineness - 1) end
    used = math.min(max_used, math.max(0, used) + math.max(0, cost * unit - (now - charged_at) * fineness))
    if used > 0 then
      fraction, is_charged = used % fineness, true
      expires = now + (used - fraction) / fineness + (fraction > 0 and 1 or 0)
    end
