-- Charges what a process has admitted by itself while this server was away, whatever the limits: once.
-- KEYS: one a charge, then the mark by which a second time is known; all of one slot. ARGV: now in microseconds ("" for
-- the server's clock), the mark's time to live in milliseconds, then for each charge a byte and six big-endian doubles:
-- algorithm, cost, the rule's plan (limit, a, b, c) and how long ago it was made, in microseconds.
-- Reply: the number of charges made; those that count no more are not.
local now = tonumber(ARGV[1])
local least_lifetime = now and 3600000000 or 1000 -- keys expire by the server's clock, not by a test's
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local MAX_COUNT = 999999999999999
if not redis.call('SET', KEYS[#KEYS], '1', 'NX', 'PX', ARGV[2]) then return 0 end

local function lifetime(time)
  return math.ceil(math.max(time, least_lifetime) / 1000)
end

-- A log with one call more, in the order of time; of more units than the limit the newest are kept.
local function add_to_log(key, at, cost, limit, a)
  local found = redis.pcall('ZRANGEBYSCORE', key, string.format('(%d', now - a), '+inf', 'WITHSCORES')
  local calls, is_in = {}, false
  for j = 1, #found, 2 do -- an error of a foreign value has none
    local time, own = math.min(now, tonumber(found[j + 1])), tonumber(string.match(found[j], ':(%d+)$'))
    if not is_in and time > at then
      calls[#calls + 1], is_in = { at, cost }, true
    end
    calls[#calls + 1] = own and { time, own }
  end
  if not is_in then calls[#calls + 1] = { at, cost } end
  local units, last = 0, 0
  for _, call in ipairs(calls) do units = units + call[2] end
  redis.call('DEL', key)
  for _, call in ipairs(calls) do
    local own = math.max(0, call[2] - math.max(0, units - limit))
    units, last = units - call[2], last + own
    if own > 0 then
      redis.call('ZADD', key, string.format('%d', call[1]), string.format('%016d:%d', last, own))
    end
  end
  redis.call('PEXPIRE', key, lifetime(a))
end

local place, made = 1, 0
for i = 1, #KEYS - 1 do
  local key, algorithm, cost, limit, a, b, c, age = KEYS[i]
  algorithm, cost, limit, a, b, c, age, place = struct.unpack('>Bdddddd', ARGV[3], place)
  local at = now - math.max(0, age)
  local state = algorithm < 10 and redis.pcall('GET', key)
  if type(state) ~= 'string' then state = '' end -- none, or a foreign value
  local kept, lasts
  if algorithm == 1 or algorithm == 2 then
    local start, finish = now - now % a, now - now % a + a
    if algorithm == 2 and now < b then
      start, finish = a, b
    elseif algorithm == 2 then
      start, finish = b, c
    end
    local began, count = string.match(state, '^(%d+):(%d+)$')
    if not began or tonumber(began) < start then count = 0 end
    if at >= start then
      kept, lasts = string.format('%d:%d', start, math.min(count + cost, MAX_COUNT)), finish - now
    end
  elseif algorithm == 3 then
    local current, before, counts = (now - now % a) / a, {}, {}
    for count in string.gmatch(state, '%d+') do before[#before + 1] = tonumber(count) end
    local passed = math.max(0, current - (before[1] or current))
    for j = 0, b do counts[j + 1] = j >= passed and before[2 + j - passed] or 0 end
    local sub_window = 1 + math.max(0, current - (at - at % a) / a)
    if sub_window <= b + 1 then
      counts[sub_window] = math.min(counts[sub_window] + cost, MAX_COUNT)
      for j, count in ipairs(counts) do counts[j] = string.format('%d', count) end
      kept = string.format('%d:', current) .. table.concat(counts, ':')
      lasts = (current + b + 1) * a - now
    end
  elseif algorithm == 4 then
    local arrival, fraction = now, 0
    if string.find(state, '^%d+$') then
      arrival, fraction = tonumber(string.sub(state, 1, 16)), tonumber(string.sub(state, 17)) or 0
    end
    local used = math.max(0, (arrival - now) * c + math.min(fraction, c - 1))
    used = math.min(b, used + math.max(0, cost * a - (now - at) * c))
    if used > 0 then
      kept = c == 1 and string.format('%d', now + used)
        or string.format(c > 1000 and '%016d%015d' or '%016d%03d', now + math.floor(used / c), used % c)
      lasts = math.ceil(used / c)
    end
  elseif algorithm == 5 then
    local since, units = string.match(state, '^(%d+):(%d+)$')
    since, units = math.min(now, tonumber(since) or now), math.min(limit, tonumber(units) or limit)
    local refills = math.floor((now - since) / a)
    units = math.min(limit, units + math.min(refills, math.ceil(limit / b)) * b)
    since = units == limit and now or since + refills * a
    units = math.max(0, units - cost)
    kept, lasts = string.format('%d:%d', since, units), since + math.ceil((limit - units) / b) * a - now
  elseif algorithm == 10 and at > now - a then
    add_to_log(key, at, cost, limit, a)
    made = made + 1
  end
  if kept then
    redis.call('SET', key, kept, 'PX', lifetime(lasts))
    made = made + 1
  end
end
return made
