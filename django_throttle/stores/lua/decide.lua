-- Decides calls, each as one: all of its charges are made, or none.
-- KEYS: for each call the values of its idents (records.lua), then the keys of its sliding logs and leases.
-- ARGV: by a test's clock now in microseconds, a text shorter than a request; then for each call: its request; for each of
-- its values the format of the records asked for, for Lua's struct library; and where it takes a lease: uid of the caller,
-- lease, the lease's time to live in milliseconds. A request is little-endian doubles:
--
--   1               flags: 1 commit, 2 takes a lease, 4 has bounds of a calendar
--   2, 3            number of values, and of charges with a key of their own
--   7 each charge   head of its record; algorithm, and 16 where refused calls count, 32 for a shadow, 64 where the record is
--                   a large one; cost; and of the rule's plan limit, a, b, c; those of the values first
--   2 each value    number of its charges, and the bytes of their records
--
-- Reply: doubles in one text, which is read at once where an array is read number by number: values repaired, the time,
-- then three a charge: retry (-1 never, -2 nothing is decided as a calendar does not hold the time), remaining, reset.
-- Times are microseconds, as they stand afterwards.
--
-- "--- each record" repeats what follows it, until "--- end", for each algorithm whose state is a record, "--- each own" for
-- each with a key of its own; ALGORITHM asks whether it is the charge's. Sections of an algorithm's file stand where they
-- are named:
--
--   functions   of an algorithm with a key of its own, for its "decide"
--   call        checks all charges of a call; sets is_stale where their numbers are too old
--   read        variables for the numbers of a record, which are in fields from place + 2 on; sets `numbers`, how many
--               fields those are
--   decide      reads them, expires (long ago where there is no record, as good as one that ran out), algorithm, is_large,
--               cost, limit, a, b, c, counts_denied, and how much of the cost is `added` if it fits. Sets the StepResult of
--               core/algorithms/base.py: retry, remaining, reset, charged_remaining, and expires and the numbers as the call
--               leaves them; and is_changed where those are to be stored although the call is refused: a counted denial, or a
--               state that the clock, set back, has made wrong. One with a key of its own has key instead, and sets
--               charged_reset, and `writes` where it may be charged
--   store       puts the numbers back into fields
--   write       charges at a key of its own; may correct charged_remaining
--   wait        sets `retry` of a call like the one that was written
--
-- What the usual way does not need is not looked up beforehand: a function in a table takes as long as ten steps. Variables
-- that are there already are set one by one: Lua copies the values of an assignment to several twice.
local call, decode, encode, sub, KEYS, ARGV = redis.call, struct.unpack, struct.pack, string.sub, KEYS, ARGV
local DOUBLES = '<dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd'
local now, least_lifetime, next_arg
if #ARGV[1] < 24 then
  now, next_arg = tonumber(ARGV[1]), 2
  least_lifetime = 3600000000 -- as keys expire by the server's clock
else
  local time = call('TIME')
  now, next_arg, least_lifetime = time[1] * 1000000 + time[2], 1, 1000
end
-- Of the time at which a small record runs out, the first that there may be.
local earliest = now - 140737488355328
local long_ago = now - 70368744177664 -- runs out in no year to come, either
if long_ago < 0 then long_ago = 0 end -- by a clock of tests; there is no sign in a record
--- use constants
local CHARGE = 7 -- numbers of a charge in a request
local repaired, first_key, answers, answered = 0, 1, nil, 2
repeat
  local length = #ARGV[next_arg] / 8
  if length >= #DOUBLES then DOUBLES = '<' .. string.rep('d', length) end
  local request = { decode(sub(DOUBLES, 1, length + 1), ARGV[next_arg]) }
  answers = answers or request -- these are written over its beginning, which has been read by then
  local flags, values, owns = request[1], request[2], request[3]
  local commit, is_stale = flags % 2 == 1, false
  local last_charge, first_format = length - 2 * values, next_arg + 1
  local uid, lease, ttl
  next_arg = first_format + values
  if flags % 4 >= 2 then
    uid, lease, ttl = ARGV[next_arg], ARGV[next_arg + 1], ARGV[next_arg + 2]
    next_arg = next_arg + 3
  end
  if flags >= 4 then
--- each record
--- call
--- end
    commit = commit and not is_stale
  end

  -- Charges with a key of their own: what they say is known before a record is charged.
  local granted, own_results = true, owns > 0 and {}
  if owns > 0 then
--- use lifetime
--- each own
--- functions
--- end
    for own = 1, owns do
      local key, i = KEYS[first_key + values + own - 1], last_charge + 1 - CHARGE * (owns - own + 1)
      local algorithm, cost, limit, a = request[i + 1], request[i + 2], request[i + 3], request[i + 4]
      if not (cost >= 0 and cost < EXACT) then return redis.error_reply('ERR a cost is a whole number') end -- NaN too
      local is_shadow, counts_denied = algorithm % 64 >= 32, algorithm % 32 >= 16 and commit and cost > 0
      algorithm = algorithm % 16
      local retry, remaining, reset, charged_reset, writes = 0, 0, 0, 0, false
      if false then
--- each own
      elseif ALGORITHM then
--- decide
--- end
      end
      if retry ~= 0 and not is_shadow then granted = false end
      own_results[own] = { retry, remaining, reset, charged_reset, writes }
    end
  end

  -- Charges with a record. All are charged as they are read, as most often all fit; if one does not, all are read again.
  -- Then those that count refused calls are read twice: their answer says how long a call like this one has to wait now.
  local charges = commit and granted
  local value, is_moved, fields, is_written, lasted, longest, size -- of a value; of several they are kept in a table
  local value_states, answered_before, is_second, repaired_before = values > 1 and {}, answered, false, nil
  while true do
    local i, is_charged, is_waiting = 4, false, false
    for number = 1, values do
      local format = ARGV[first_format + number - 1]
      if not is_second then
        local key = KEYS[first_key + number - 1]
        value = redis.pcall('GET', key)
        is_moved = false
        if not value then
          value = ''
        elseif value == '' or value.err then -- a foreign value
          call('DEL', key)
          value, repaired = '', repaired + 1
        end
      elseif value_states then
        value, is_moved = value_states[number][1], value_states[number][2]
      end
      local last = i + CHARGE * (request[last_charge + 2 * number - 1] - 1)
      size = request[last_charge + 2 * number]
      fields = #value >= size and { decode(format, value) } or {}
      is_written, lasted, longest = false, 0, 0
      local place = 1 -- in the fields, of a record
      repeat
        local head, algorithm, cost, limit = request[i], request[i + 1], request[i + 2], request[i + 3]
        local a, b, c = request[i + 4], request[i + 5], request[i + 6]
        if not (cost >= 0 and cost < EXACT) then return redis.error_reply('ERR a cost is a whole number') end -- NaN too
        if fields[place] ~= head then
--- use arranged
        end
        local is_large, is_shadow, counts_denied, numbers, expires = false, false, false, 0, fields[place + 1]
        if algorithm >= 16 then
          is_large, is_shadow = algorithm >= 64, algorithm % 64 >= 32
          counts_denied = algorithm % 32 >= 16 and commit and cost > 0 and not is_waiting
          algorithm = algorithm % 16
        end
        if not is_large then expires = (expires - earliest) % 281474976710656 + earliest end
        local expired = expires
        if expires > lasted and not is_waiting then lasted = expires end
        local added = (charges or counts_denied) and cost or 0
        local retry, remaining, reset, charged_remaining, is_changed = 0, 0, 0, 0, counts_denied
        if false then
--- each record
        elseif ALGORITHM then
--- read
--- decide
          if retry == 0 and added > 0 or is_changed and cost > 0 then
--- store
          end
--- end
        end
        if retry ~= 0 and not is_shadow then granted, charges = false, false end
        if retry == 0 and added > 0 then
          is_written = true
          is_charged = true
          fields[place + 1] = expires
          remaining = charged_remaining
          reset = expires - now
        elseif is_changed and cost > 0 then
          if reset == 0 then expires = long_ago end
          is_written, fields[place + 1] = true, expires
        else
          expires = expired
        end
        if expires > longest then longest = expires end
        if is_waiting then
          answers[answered - 2], is_waiting = retry, false
        else
          answers[answered + 1] = retry
          answers[answered + 2] = remaining
          answers[answered + 3] = reset
          answered = answered + 3
          is_waiting = is_second and counts_denied and retry == 0 and not is_shadow
        end
        if not is_waiting then
          i = i + CHARGE
          place = place + 2 + numbers
        end
      until i > last
      if value_states then value_states[number] = { value, is_moved, fields, is_written, lasted, longest, size } end
    end
    if granted or is_second or not is_charged then break end
    request = { decode(sub(DOUBLES, 1, length + 1), ARGV[first_format - 1]) }
    answered, is_second, repaired_before = answered_before, true, repaired
  end
  repaired = repaired_before or repaired

  for number = 1, commit and values or 0 do
    local key = KEYS[first_key + number - 1]
    if value_states then value, is_moved, fields, is_written, lasted, longest, size = unpack(value_states[number]) end
    local text, at
    if is_written then
      text, at = encode(ARGV[first_format + number - 1], unpack(fields)), size + 1
    elseif call('PTTL', key) == -1 then -- a client has removed its time to live
      text, at, longest = '', 1, 0
    end
    if text then
      local latest, others = 0, nil
      if at <= #value then
--- use others
      end
      -- Where nothing moves, what changed is written in its place: that takes less than to set the key. To look whether
      -- it has a time to live still takes less than to set that again.
      local stays = not (is_moved or others)
      if stays and longest == lasted and call('PTTL', key) >= 0 then
        call('SETRANGE', key, '0', text)
      else
        local lasts = math.max(longest, latest) - now
        lasts = (lasts < least_lifetime and least_lifetime or lasts) + 999
        lasts = (lasts - lasts % 1000) / 1000
        if stays then
          call('SETRANGE', key, '0', text)
          call('PEXPIRE', key, lasts)
        else
          call('SET', key, text .. (others or sub(value, at)), 'PX', lasts)
        end
      end
    end
  end

  if owns > 0 then
--- use lifetime
    for own = 1, owns do
      local key, i = KEYS[first_key + values + own - 1], last_charge + 1 - CHARGE * (owns - own + 1)
      local algorithm, cost, limit = request[i + 1], request[i + 2], request[i + 3]
      local retry, remaining, reset, charged_reset, writes = unpack(own_results[own])
      if commit and cost > 0 then
        if writes and (granted or algorithm % 32 >= 16) then
          local is_shadow, charged_remaining = algorithm % 64 >= 32, remaining - cost
          algorithm = algorithm % 16
          if false then
--- each own
          elseif ALGORITHM then
--- write
--- end
          end
          remaining, reset = charged_remaining, charged_reset
          if not granted and not is_shadow and remaining < cost then
--- each own
--- functions
--- end
            if false then
--- each own
            elseif ALGORITHM then
--- wait
--- end
            end
          end
        elseif call('PTTL', key) == -1 then
          call('PEXPIRE', key, lifetime(reset))
        end
      end
      answers[answered + 1], answers[answered + 2], answers[answered + 3] = retry, remaining, reset
      answered = answered + 3
    end
  end

  if is_stale then
    for i = answered_before + 1, answered do answers[i] = -2 end
  end
  first_key = first_key + values + owns
until not KEYS[first_key]
if answered >= #DOUBLES then DOUBLES = '<' .. string.rep('d', answered) end
answers[1], answers[2] = repaired, now
return encode(sub(DOUBLES, 1, answered + 1), unpack(answers, 1, answered))
