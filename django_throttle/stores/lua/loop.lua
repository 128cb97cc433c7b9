-- Opens the loop over the charges; the fragments are its branches.
-- KEYS, ARGV, reply: see prelude.lua.
for i = 1, #KEYS do
  local key = KEYS[i]
  local algorithm, flags, cost, limit, a, b, c
  algorithm, flags, cost, limit, a, b, c, at = struct.unpack('>BBddddd', blob, at)
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
