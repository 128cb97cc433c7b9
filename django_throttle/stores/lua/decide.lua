  -- Closes the branches and decides: all of a call's charges are made, or none.
  -- KEYS, ARGV: see prelude.lua. Reply: see end.lua.
  end
  if retry ~= 0 and flags < 2 then granted = false end
  if steps then
    steps[i] = { key, algorithm, flags, cost, limit, a, remaining, retry, reset, charged_reset, charged, kept }
  end
end

for i = 1, total do
  if steps then
    key, algorithm, flags, cost, limit, a, remaining, retry, reset, charged_reset, charged, kept =
      unpack(steps[i], 1, 12)
  end
  if commit and cost > 0 then
    if charged and (granted or flags % 2 == 1) then
      if charged ~= true then
        redis.call('SET', key, charged, 'PX', lifetime(charged_reset))
        remaining, reset = remaining - cost, charged_reset
