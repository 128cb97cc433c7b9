-- Decides calls, each as one: all of its charges are made, or none.
-- KEYS: one a charge. ARGV: now in microseconds ("" for the server's clock), then the calls:
-- a byte of flags (1 commit, 2 with a lease), two bytes with the number of charges, and for each charge two bytes
-- and five big-endian doubles: algorithm, flags (1 counts denied, 2 shadow), cost and the numbers of the rule's plan:
-- limit, a, b, c. Then for each call with a lease: uid of the caller, lease, the lease's time to live in milliseconds.
-- Reply: big-endian doubles in one text, which is read at once where an array is read number by number: values repaired,
-- the time, then three a charge: retry (-1 never), remaining, reset; times in microseconds, as they stand afterwards.
-- Where a line says "--- name", the sections of that name stand in the script, of all algorithms that are asked for:
-- "before" defines functions. "decide" is a branch of the loop over the charges: it reads key, state, cost, limit, a, b,
-- c and counts_denied, writes nothing, and sets the StepResult of core/algorithms/base.py: retry, remaining, reset,
-- charged_remaining, charged_reset, and as texts charged_state and refused_state. An algorithm whose state is no text
-- (its number is 10 or more) sets `writes` instead of charged_state where it may be charged, and has a section "write".
-- Times are microseconds.
local now = tonumber(ARGV[1])
-- Keys expire by the server's clock, not by a test's: then they get an hour.
local least_lifetime = now and 3600000000 or 1000
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local NEVER, MAX_COUNT, EXACT = -1, 999999999999999, 9007199254740992
local blob = ARGV[2]
local repaired, place, charges, answers, reply = 0, 1, 0, 1, {}
local uid, lease, ttl
local own = 3 -- where in ARGV the next call with a lease has its own arguments

-- Milliseconds to live, rounded up so that nothing expires before it is due.
local function lifetime(time)
  time = (time < least_lifetime and least_lifetime or time) + 999
  return (time - time % 1000) / 1000
end
--- before
while place <= #blob do
local marks, high, low = string.byte(blob, place, place + 2)
local commit, total = marks % 2 == 1, 256 * high + low
local granted, first, steps = true, charges, total > 1 and {}
-- What a charge came to. A single one, which is the usual call, stays here and is not put into a table.
local key, algorithm, flags, cost, limit, retry, remaining, reset
local charged_remaining, charged_reset, charged_state, refused_state, writes
if marks >= 2 then
  uid, lease, ttl = ARGV[own], ARGV[own + 1], ARGV[own + 2]
  own = own + 3
end
place = place + 3
charges = charges + total
for i = 1, total do
  local a, b, c
  key = KEYS[first + i]
  algorithm, flags, cost, limit, a, b, c, place = struct.unpack('>BBddddd', blob, place)
  if not (cost >= 0 and cost < EXACT) then -- also refuses NaN
    return redis.error_reply('ERR a cost is a whole number')
  end
  local counts_denied = commit and cost > 0 and flags % 2 == 1
  retry, remaining, reset, charged_remaining, charged_reset = 0, 0, 0, 0, 0
  charged_state, refused_state, writes = nil, nil, nil
  local state = algorithm < 10 and redis.pcall('GET', key)
  if type(state) == 'table' then -- a foreign value
    redis.call('DEL', key)
    repaired, state = repaired + 1, false
  end
  if false then
--- decide
  end
  if retry ~= 0 and flags < 2 then granted = false end
  if steps then
    steps[i] = { key, algorithm, flags, cost, limit, retry, remaining, reset, charged_remaining, charged_reset,
      charged_state, refused_state, writes }
  end
end

for i = 1, total do
  if steps then
    key, algorithm, flags, cost, limit, retry, remaining, reset, charged_remaining, charged_reset, charged_state,
      refused_state, writes = unpack(steps[i], 1, 13)
  end
  if commit and cost > 0 then
    if (charged_state or writes) and (granted or flags % 2 == 1) then
      if charged_state then
        redis.call('SET', key, charged_state, 'PX', lifetime(charged_reset))
--- write
      end
      remaining, reset = charged_remaining, charged_reset
    elseif refused_state then
      redis.call('SET', key, refused_state, 'PX', lifetime(reset))
    elseif redis.call('PTTL', key) == -1 then -- somebody made it immortal
      redis.call('PEXPIRE', key, lifetime(reset))
    end
  end
  answers = answers + 1
  reply[answers] = struct.pack('>ddd', retry, remaining, reset)
end
end
reply[1] = struct.pack('>dd', repaired, now)
return table.concat(reply)
