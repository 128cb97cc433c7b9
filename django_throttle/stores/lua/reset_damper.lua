-- Reset the budgets of dampers: remove what was attempted, and have later reports about earlier times ignored.
--
-- KEYS     counters, see add_meter_report.lua; derived keys share their slots
-- ARGV[1]  current time in microseconds; "" for the server's clock
-- Reply    number of removed sub-intervals
local SUB_INTERVAL, KEPT_COUNT, RESET_MS = 6000000, 4, 48000
--- use clock
local current, removed = (now - now % SUB_INTERVAL) / SUB_INTERVAL, 0
for _, counter in ipairs(KEYS) do
  for index = current - KEPT_COUNT + 1, current + 1 do
    removed = removed + redis.call('DEL', string.format('%s:%d', counter, index))
  end
  redis.call('SET', counter .. ':reset', string.format('%d', now), 'PX', math.max(RESET_MS, least_lifetime))
end
return removed
