-- A bucket of `limit` units. Each whole `interval` since the first use, or since it was full, adds `refill_units`.
-- Record: `start`, the time of the last refill, and `units` at that time. It expires when the bucket is full.
-- KEYS, ARGV, reply, variables: see decide.lua, refund.lua and backfill.lua.
--- read
    field_count = 2
    local start, units = fields[place + 2], fields[place + 3]
--- decide
      local interval, refill_units = a, b
      if expires <= now then
        start, units = now, limit
      elseif not (start >= 0 and start < EXACT and units >= 0 and units <= MAX_LIMIT) then
        repaired, start, units = repaired + 1, now, limit
      end
      units = math.min(units, limit)
      if start > now then -- the clock went back: the interval begins again
        start, is_changed = now, true
      end
      local refills = math.floor((now - start) / interval)
      units = math.min(limit, units + math.min(refills, math.ceil(limit / refill_units)) * refill_units)
      start = units == limit and now or start + refills * interval
      if cost > units then
        if counts_denied then units = math.max(0, units - cost) end
        retry = cost > limit and NEVER or start + math.ceil((cost - units) / refill_units) * interval - now
      end
      remaining, charged_remaining = units, units - cost
      if units < limit then reset = start + math.ceil((limit - units) / refill_units) * interval - now end
      if retry == 0 then units = units - added end
      expires = start + math.ceil((limit - units) / refill_units) * interval
--- store
      fields[place + 2], fields[place + 3] = start, units
--- refund
    local interval = a
    if start <= charged_at and now < start + interval then -- else the bucket was refilled, and may have been full
      if start == charged_at then start = now end -- it was full then, so its interval starts with the next charge
      units, is_refunded = math.min(limit, units + cost), true
    end
--- backfill
    local interval, refill_units = a, b
    if expires <= now then start, units = now, limit end
    start, units = math.min(now, start), math.min(limit, units)
    local refills = math.floor((now - start) / interval)
    units = math.min(limit, units + math.min(refills, math.ceil(limit / refill_units)) * refill_units)
    start = units == limit and now or start + refills * interval
    units, is_charged = math.max(0, units - cost), true
    expires = start + math.ceil((limit - units) / refill_units) * interval
