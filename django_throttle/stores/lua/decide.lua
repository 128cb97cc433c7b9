-- Closes every decision script: decides all charges as one and writes all or nothing.
-- KEYS: one a charge. ARGV: now in microseconds ("" for the server's clock), "1" to commit, then seven
-- a charge: algorithm, cost, flags (1 counts denied, 2 shadow, 3 both), four numbers of the rule's plan.
-- Reply: values repaired, then three a charge: retry (-1 never), remaining, reset; in microseconds.
local steps, granted = {}, true
for i = 1, #KEYS do
  local at = 7 * i - 4
  local cost, flags = tonumber(ARGV[at + 1]), ARGV[at + 2]
  if not (cost and cost >= 0 and cost < EXACT) then -- also refuses NaN
    return redis.error_reply('ERR a cost is a whole number')
  end
  local counts_denied = commit and (flags == '1' or flags == '3')
  local step = { algorithms[ARGV[at]](KEYS[i], at, cost, counts_denied) }
  steps[i] = step
  if step[2] ~= 0 and (flags == '0' or flags == '1') then granted = false end
end

local reply = { repaired }
for i, step in ipairs(steps) do
  local at = 7 * i - 4
  local cost, flags = tonumber(ARGV[at + 1]), ARGV[at + 2]
  local remaining, retry, reset, charged_reset, charged, kept = unpack(step, 1, 6)
  if commit and cost > 0 then
    local write = writers[ARGV[at]]
    local charges = charged and (granted or flags == '1' or flags == '3')
    if charges and write then
      remaining, reset = write(KEYS[i], at, cost, step)
    elseif charges then
      redis.call('SET', KEYS[i], charged, 'PX', lifetime(charged_reset))
      remaining, reset = remaining - cost, charged_reset
    elseif kept then
      redis.call('SET', KEYS[i], kept, 'PX', lifetime(reset))
    elseif redis.call('PTTL', KEYS[i]) == -1 then -- somebody made it immortal
      redis.call('PEXPIRE', KEYS[i], lifetime(reset))
    end
  end
  reply[3 * i - 1], reply[3 * i], reply[3 * i + 1] = retry, remaining, reset
end
reply[1] = repaired
return reply
