-- Adds one meter's report for a rule and ident, and returns the sums of all meters.
-- KEYS: the counter, of which all others are derived, with the same hash tag, so in the same slot: counter:<index>
-- for each sub-interval of six seconds (HASH: a meter's name to its "attempted:projected:pace", and the sums of all
-- meters under "="), counter:reset (when the budget was given back). See damper/aggregate.py.
-- ARGV: now in microseconds ("" for the server's clock), the meter's name, since when it counts, the time at which
-- it sent this ("" when it does not know the server's), then index, attempted, projected and pace for each
-- sub-interval. These are totals: a report sent twice, late or out of order changes nothing.
-- Reply: now, 1 when it was counted, when the budget was given back (0: not lately), then attempted, projected and
-- pace of the sub-interval in progress and the three before it.
local SUB, KEPT, TOLERANCE, RESET = 6000000, 4, 1500000, 48000000
local counter, meter, since, sent = KEYS[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
--- use clock
local current = (now - now % SUB) / SUB

local reset_at = redis.pcall('GET', counter .. ':reset')
reset_at = type(reset_at) == 'string' and tonumber(reset_at) or 0
if now < reset_at or now - reset_at >= RESET then reset_at = 0 end

-- Three numbers of a sub-interval: those of one meter, or, under "=", the sums of all.
local function numbers_of(key, field)
  local found = redis.pcall('HGET', key, field)
  if type(found) == 'table' then -- a foreign value
    redis.call('DEL', key)
    found = false
  end
  local attempted, projected, pace = string.match(found or '', '^(%d+):(%d+):(%d+)$')
  return tonumber(attempted) or 0, tonumber(projected) or 0, tonumber(pace) or 0
end

local function count(index, attempted, projected, pace)
  local key = string.format('%s:%d', counter, index)
  local a, p, r = numbers_of(key, meter)
  if attempted >= a then -- else a newer report has come before
    local all_a, all_p, all_r = numbers_of(key, '=')
    all_a, all_p, all_r = all_a + attempted - a, math.max(0, all_p + projected - p), math.max(0, all_r + pace - r)
    redis.call('HSET', key, '=', string.format('%d:%d:%d', all_a, all_p, all_r),
      meter, string.format('%d:%d:%d', attempted, projected, pace))
    local lifetime = math.ceil(((index + KEPT + 1) * SUB - now) / 1000)
    redis.call('PEXPIRE', key, math.max(lifetime, least_lifetime))
  end
end

local taken = sent and math.abs(now - sent) <= TOLERANCE and since >= reset_at
if taken then
  for i = 5, #ARGV, 4 do
    local index = tonumber(ARGV[i])
    if index > current - KEPT and index <= current + 1 then
      count(index, tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]))
    end
  end
end

local reply = { now, taken and 1 or 0, reset_at }
for age = 0, KEPT - 1 do
  reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = numbers_of(string.format('%s:%d', counter, current - age), '=')
end
return reply
