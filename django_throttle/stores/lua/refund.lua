-- Gives back what was charged a moment ago, as if it had not been; never more than that, and never less than what
-- it kept anybody else from getting.
-- KEYS: one a charge, all of one slot. ARGV: now in microseconds ("" for the server's clock), then for each charge a
-- byte and seven big-endian doubles: algorithm, cost, the rule's plan (limit, a, b, c), when it was charged, and the
-- microseconds to full that were answered then. Reply: the number of charges given back.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local place, refunded = 1, 0

for _, key in ipairs(KEYS) do
  local algorithm, cost, limit, a, b, c, since, reset
  algorithm, cost, limit, a, b, c, since, reset, place = struct.unpack('>Bddddddd', ARGV[2], place)
  local state = algorithm < 10 and redis.pcall('GET', key)
  local left
  if type(state) ~= 'string' then
    if algorithm == 10 then
      -- What was taken later has its units numbered anew; the units of that microsecond are alike.
      local later = redis.pcall('ZRANGEBYSCORE', key, string.format('%d', since), '+inf', 'WITHSCORES')
      local back = 0
      for j = 1, #later, 2 do -- an error of a foreign value has none
        local last, own = string.match(later[j], '^(%d+):(%d+)$')
        local less = last and tonumber(later[j + 1]) == since and math.min(own, cost - back) or 0
        back = back + less
        if back == 0 then break end
        redis.call('ZREM', key, later[j])
        if last and own - less > 0 then
          redis.call('ZADD', key, later[j + 1], string.format('%016d:%d', last - back, own - less))
        end
      end
      if back > 0 then refunded = refunded + 1 end
    end
  elseif algorithm == 1 or algorithm == 2 then
    local start, count = string.match(state, '^(%d+):(%d+)$')
    if start and tonumber(start) <= since then -- else the window has ended
      left = string.format('%s:%d', start, math.max(0, count - cost))
    end
  elseif algorithm == 3 then
    local counts = {}
    for count in string.gmatch(state, '%d+') do counts[#counts + 1] = tonumber(count) end
    local age = (counts[1] or 0) - (since - since % a) / a
    local at = math.max(0, age) + 2 -- after a step back of the clock all of it counts in the newest
    if counts[at] then
      counts[at] = math.max(0, counts[at] - cost)
      for place, count in ipairs(counts) do counts[place] = string.format('%d', count) end
      left = table.concat(counts, ':')
    end
  elseif algorithm == 4 and string.find(state, '^%d+$') then
    local arrival, fraction = tonumber(state), 0
    if #state > 16 then arrival, fraction = tonumber(string.sub(state, 1, 16)), tonumber(string.sub(state, 17)) end
    fraction = math.min(fraction, c - 1) -- of another fineness, from before the limit was edited
    -- What has flowed out since then would have been other charges', or nobody's.
    local before = math.max(0, (c == 1 and reset or reset - 1) * c - cost * a)
    local back = cost * a - math.max(0, (now - since) * c - before)
    local used = (arrival - now) * c + fraction - back
    if back > 0 and used <= 0 then
      redis.call('DEL', key)
      refunded = refunded + 1
    elseif back > 0 then
      left = c == 1 and string.format('%d', now + used)
        or string.format(c > 1000 and '%016d%015d' or '%016d%03d', now + math.floor(used / c), used % c)
    end
  elseif algorithm == 5 then
    local start, units = string.match(state, '^(%d+):(%d+)$')
    start = tonumber(start)
    if start and start <= since and now < start + a then -- else it was refilled, and may have been full
      if start == since then start = now end -- it was full then: its interval begins with the next charge
      left = string.format('%d:%d', start, math.min(limit, units + cost))
    end
  end
  if left then
    redis.call('SET', key, left, 'KEEPTTL')
    refunded = refunded + 1
  end
end
return refunded
