-- Fragment, after fixed_window.lua: at most `limit` in each period of a calendar.
-- KEYS[i]: "start in microseconds:count". ARGV[at+3..6]: limit, where this period begins and ends and where the
-- next ends, in microseconds. Reply: see prelude.lua; or at once -1 and the time in microseconds, when a calendar
-- sent along does not hold it: nothing is decided then.
for i = 1, #KEYS do
  local at = 7 * i - 4
  if ARGV[at] == 'calendar_window' and (now < tonumber(ARGV[at + 4]) or now >= tonumber(ARGV[at + 6])) then
    return { -1, now }
  end
end

algorithms.calendar_window = function(key, at, cost, counts_denied)
  local start, finish = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
  if now >= finish then start, finish = finish, tonumber(ARGV[at + 6]) end
  return window_step(key, cost, tonumber(ARGV[at + 3]), start, finish, counts_denied)
end
