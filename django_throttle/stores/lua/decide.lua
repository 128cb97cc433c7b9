  -- Closes every decision script: all charges are made, or none.
  -- KEYS, ARGV: see prelude.lua. Reply: values repaired, then three a charge: retry (-1 never), remaining,
  -- reset; times in microseconds, as they stand afterwards.
  end
  if retry ~= 0 and flags < 2 then granted = false end
  steps[i] = { algorithm, flags, cost, remaining, retry, reset, charged_reset, charged, kept, a, limit }
end

local reply = { 0 }
for i = 1, #KEYS do
  local key = KEYS[i]
  local algorithm, flags, cost, remaining, retry, reset, charged_reset, charged, kept, a, limit = unpack(steps[i], 1, 11)
  if commit and cost > 0 then
    if charged and (granted or flags % 2 == 1) then
      if charged ~= true then
        redis.call('SET', key, charged, 'PX', lifetime(charged_reset))
        remaining, reset = remaining - cost, charged_reset
