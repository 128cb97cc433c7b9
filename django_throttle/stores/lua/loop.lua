-- Opens the loop over the calls and the loop over a call's charges; the fragments are branches of that one.
-- KEYS, ARGV: see prelude.lua. Reply: see end.lua.
while place <= #blob do
local commit, total, granted, first, steps = string.byte(blob, place) == 1, string.byte(blob, place + 1), true, charges, {}
place = place + 2
charges = charges + total
for i = 1, total do
  local key = KEYS[first + i]
  local algorithm, flags, cost, limit, a, b, c
  algorithm, flags, cost, limit, a, b, c, place = struct.unpack('>BBddddd', blob, place)
  if not (cost >= 0 and cost < EXACT) then -- also refuses NaN
    return redis.error_reply('ERR a cost is a whole number')
  end
  local counts_denied = commit and flags % 2 == 1
  local remaining, retry, reset, charged_reset, charged, kept = 0, 0, 0, 0, nil, nil
  local state = algorithm < 10 and redis.pcall('GET', key)
  if type(state) == 'table' then -- not a text: not ours
    redis.call('DEL', key)
    repaired, state = repaired + 1, false
  end
  if false then
