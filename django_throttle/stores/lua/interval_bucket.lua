  -- Fragment: a bucket of `limit` units to which every whole interval `a` since its first use brings `b`.
  -- KEYS[i]: "refilled at in microseconds:units". ARGV, reply: see prelude.lua.
  elseif algorithm == 5 then
    local since, units = now, limit
    if state then
      local found_since, found_units = string.match(state, '^(%d+):(%d+)$')
      since, units = tonumber(found_since), tonumber(found_units)
      if not (since and since < EXACT) then
        repaired, since, units = repaired + 1, now, limit
      end
      units = math.min(units, limit)
    end
    if since > now then -- the clock went back: the interval begins again
      since = now
      kept = string.format('%d:%d', since, units)
    end
    local refills = math.floor((now - since) / a)
    units = math.min(limit, units + math.min(refills, math.ceil(limit / b)) * b)
    since = units == limit and now or since + refills * a
    if cost <= units then
      charged = string.format('%d:%d', since, units - cost)
    else
      if counts_denied then
        units = math.max(0, units - cost)
        kept = string.format('%d:%d', since, units)
      end
      retry = cost > limit and NEVER or since + math.ceil((cost - units) / b) * a - now
    end
    remaining = units
    if units < limit then reset = since + math.ceil((limit - units) / b) * a - now end
    charged_reset = since + math.ceil((limit - units + cost) / b) * a - now
