-- A bucket of `limit` units to which every whole `interval` since its first use `brings` some.
-- KEYS[i]: "refilled at in microseconds:units". ARGV, reply: see decide.lua, refund.lua and late.lua.
--- decide
  elseif algorithm == 5 then
    local interval, brings = a, b
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
      refused_state = string.format('%d:%d', since, units)
    end
    local refills = math.floor((now - since) / interval)
    units = math.min(limit, units + math.min(refills, math.ceil(limit / brings)) * brings)
    since = units == limit and now or since + refills * interval
    if cost <= units then
      charged_state = string.format('%d:%d', since, units - cost)
    else
      if counts_denied then
        units = math.max(0, units - cost)
        refused_state = string.format('%d:%d', since, units)
      end
      retry = cost > limit and NEVER or since + math.ceil((cost - units) / brings) * interval - now
    end
    remaining, charged_remaining = units, units - cost
    if units < limit then reset = since + math.ceil((limit - units) / brings) * interval - now end
    charged_reset = since + math.ceil((limit - units + cost) / brings) * interval - now
--- refund
  elseif algorithm == 5 then
    local interval = a
    local start, units = string.match(state, '^(%d+):(%d+)$')
    start = tonumber(start)
    if start and start <= since and now < start + interval then -- else it was refilled, and may have been full
      if start == since then start = now end -- it was full then: its interval begins with the next charge
      left = string.format('%d:%d', start, math.min(limit, units + cost))
    end
--- late
  elseif algorithm == 5 then
    local interval, brings = a, b
    local since, units = string.match(state, '^(%d+):(%d+)$')
    since, units = math.min(now, tonumber(since) or now), math.min(limit, tonumber(units) or limit)
    local refills = math.floor((now - since) / interval)
    units = math.min(limit, units + math.min(refills, math.ceil(limit / brings)) * brings)
    since = units == limit and now or since + refills * interval
    units = math.max(0, units - cost)
    stored_state, lasts = string.format('%d:%d', since, units), since + math.ceil((limit - units) / brings) * interval - now
