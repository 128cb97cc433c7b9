-- A calendar that does not hold the time has to be sent again, and nothing is decided. The rest is in fixed_window.lua.
-- KEYS, ARGV: see decide.lua. Reply then: two doubles, -1 and the time in microseconds.
--- before
local ahead = 1
while ahead <= #blob do
  local total = decode('<H', blob, ahead + 1)
  ahead = ahead + 3
  for at = ahead, ahead + 50 * (total - 1), 50 do
    local algorithm, start, _, finish = decode('<Bxxxxxxxxxxxxxxxxxddd', blob, at + 8)
    if algorithm == 2 and (now < start or now >= finish) then return encode('<dd', -1, now) end
  end
  ahead = ahead + 50 * total
end
