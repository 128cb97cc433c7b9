-- Gives the budgets of dampers back: removes what was attempted, and later reports of the time before.
-- KEYS: counters, as for damp.lua; what is derived of them has the same hash tags, so is in the same slots.
-- ARGV: now in microseconds ("" for the server's clock). Reply: the number of sub-intervals removed.
local SUB, KEPT, RESET = 6000000, 4, 48000
--- use clock
local current, removed = (now - now % SUB) / SUB, 0
for _, counter in ipairs(KEYS) do
  for index = current - KEPT + 1, current + 1 do
    removed = removed + redis.call('DEL', string.format('%s:%d', counter, index))
  end
  redis.call('SET', counter .. ':reset', string.format('%d', now), 'PX', math.max(RESET, least_lifetime))
end
return removed
