-- Add a meter's report for a rule and an ident, and return the sums of all meters; see damper/aggregate.py.
--
-- KEYS[1]     counter, the root of these keys, which share its slot:
--             counter:<index>   per sub-interval of six seconds: HASH meter -> "attempted:projected:pace"; the sums
--                               under "="
--             counter:reset     STRING, time of the last reset in microseconds
-- ARGV[1]     current time in microseconds; "" for the server's clock
-- ARGV[2]     name of the meter
-- ARGV[3]     time since which the meter counts, in microseconds
-- ARGV[4]     time at which the report was sent; "" if the meter does not know the server's time
-- ARGV[5...]  per sub-interval: index, attempted, projected, pace. These are totals, so a report that arrives twice,
--             late or out of order changes nothing.
-- Reply       current time in microseconds
--             1 if the report was counted, otherwise 0
--             time of the last reset; 0 if there was none lately
--             attempted, projected and pace of the current sub-interval and the three before
local SUB_INTERVAL, KEPT_COUNT, TOLERANCE, RESET_US = 6000000, 4, 1500000, 48000000
local counter, meter, counts_since, sent_at = KEYS[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
--- use clock
local current = (now - now % SUB_INTERVAL) / SUB_INTERVAL

local reset_at = redis.pcall('GET', counter .. ':reset')
reset_at = type(reset_at) == 'string' and tonumber(reset_at) or 0
if now < reset_at or now - reset_at >= RESET_US then reset_at = 0 end

-- Return attempted, projected and pace of a meter in a sub-interval; of all meters for "=".
local function numbers_of(key, field)
  local text = redis.pcall('HGET', key, field)
  if type(text) == 'table' then -- a foreign value
    redis.call('DEL', key)
    text = false
  end
  local attempted, projected, pace = string.match(text or '', '^(%d+):(%d+):(%d+)$')
  return tonumber(attempted) or 0, tonumber(projected) or 0, tonumber(pace) or 0
end

local function store_report(index, attempted, projected, pace)
  local key = string.format('%s:%d', counter, index)
  local old_attempted, old_projected, old_pace = numbers_of(key, meter)
  if attempted >= old_attempted then -- otherwise a newer report has arrived before
    local sum_attempted, sum_projected, sum_pace = numbers_of(key, '=')
    sum_attempted = sum_attempted + attempted - old_attempted
    sum_projected = math.max(0, sum_projected + projected - old_projected)
    sum_pace = math.max(0, sum_pace + pace - old_pace)
    redis.call('HSET', key, '=', string.format('%d:%d:%d', sum_attempted, sum_projected, sum_pace),
      meter, string.format('%d:%d:%d', attempted, projected, pace))
    local lifetime = math.ceil(((index + KEPT_COUNT + 1) * SUB_INTERVAL - now) / 1000)
    redis.call('PEXPIRE', key, math.max(lifetime, least_lifetime))
  end
end

local is_counted = sent_at and math.abs(now - sent_at) <= TOLERANCE and counts_since >= reset_at
if is_counted then
  for i = 5, #ARGV, 4 do
    local index = tonumber(ARGV[i])
    if index > current - KEPT_COUNT and index <= current + 1 then
      store_report(index, tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]))
    end
  end
end

local reply = { now, is_counted and 1 or 0, reset_at }
for age = 0, KEPT_COUNT - 1 do
  local key = string.format('%s:%d', counter, current - age)
  reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = numbers_of(key, '=')
end
return reply
