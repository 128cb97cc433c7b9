-- A calendar that does not hold the time has to be sent again, and nothing is decided. The rest is in fixed_window.lua.
-- KEYS, ARGV: see decide.lua. Reply then: two doubles, -1 and the time in microseconds.
--- before
local ahead = 1
while ahead <= #blob do
  local high, low = string.byte(blob, ahead + 1, ahead + 2)
  ahead = ahead + 3
  for _ = 1, 256 * high + low do
    local algorithm, flags, cost, limit, start, _, finish
    algorithm, flags, cost, limit, start, _, finish, ahead = struct.unpack('>BBddddd', blob, ahead)
    if algorithm == 2 and (now < start or now >= finish) then return struct.pack('>dd', -1, now) end
  end
end
