-- Before the loop: a calendar that does not hold the time has to be sent again, and nothing is decided.
-- KEYS, ARGV: see prelude.lua and fixed_window.lua. Reply then: -1 and the time in microseconds.
local place = at
for _ = 1, #KEYS do
  local algorithm, flags, cost, limit, a, b, c
  algorithm, flags, cost, limit, a, b, c, place = struct.unpack('>BBddddd', blob, place)
  if algorithm == 2 and (now < a or now >= c) then return { -1, now } end
end
