-- Before the loop: a calendar that does not hold the time has to be sent again, and nothing is decided.
-- KEYS, ARGV: see prelude.lua and fixed_window.lua. Reply then: two doubles, -1 and the time in microseconds.
local ahead = 1
while ahead <= #blob do
  local high, low = string.byte(blob, ahead + 1, ahead + 2)
  ahead = ahead + 3
  for _ = 1, 256 * high + low do
    local algorithm, flags, cost, limit, a, b, c
    algorithm, flags, cost, limit, a, b, c, ahead = struct.unpack('>BBddddd', blob, ahead)
    if algorithm == 2 and (now < a or now >= c) then return struct.pack('>dd', -1, now) end
  end
end
