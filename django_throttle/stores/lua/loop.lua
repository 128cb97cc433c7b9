-- Opens the loop over the calls and the loop over a call's charges; the fragments are branches of that one.
-- KEYS, ARGV: see prelude.lua. Reply: see end.lua.
while place <= #blob do
local marks, high, low = string.byte(blob, place, place + 2)
local commit, total = marks % 2 == 1, 256 * high + low
local granted, first, steps = true, charges, total > 1 and {}
-- What a charge came to. A single one, which is the usual call, stays here and is not put into a table.
local key, algorithm, flags, cost, limit, a, remaining, retry, reset, charged_reset, charged, kept
if marks >= 2 then
  uid, lease, ttl = ARGV[own], ARGV[own + 1], ARGV[own + 2]
  own = own + 3
end
place = place + 3
charges = charges + total
for i = 1, total do
  local b, c
  key = KEYS[first + i]
  algorithm, flags, cost, limit, a, b, c, place = struct.unpack('>BBddddd', blob, place)
  if not (cost >= 0 and cost < EXACT) then -- also refuses NaN
    return redis.error_reply('ERR a cost is a whole number')
  end
  local counts_denied = commit and cost > 0 and flags % 2 == 1
  remaining, retry, reset, charged_reset, charged, kept = 0, 0, 0, 0, nil, nil
  local state = algorithm < 10 and redis.pcall('GET', key)
  if type(state) == 'table' then -- not a text: not ours
    redis.call('DEL', key)
    repaired, state = repaired + 1, false
  end
  if false then
