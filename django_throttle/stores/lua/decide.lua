-- Decide calls. Each call is atomic: all of its charges are made, or none.
--
-- KEYS, for each call
--   1 per value     value of an ident: its records, see records.lua
--   1 per own key   sliding log, or lease index
--
-- ARGV
--   optional        current time in microseconds by a test clock; recognised because it is shorter than a request
--   for each call   request, in the layout below
--                   for each value: format of the requested records, for Lua's struct library
--                   with a lease: uid of the calling process, lease id, TTL of the lease in milliseconds
--
-- Request: little-endian doubles
--   flags           1 commit, 2 takes a lease, 4 has calendar bounds
--   value_count     number of values
--   own_key_count   number of charges with their own key
--   per charge      record id (see records.lua)
--   (7 doubles;     algorithm; plus 16 if refused calls count, 32 if the rule is a shadow, 64 if the record is large
--   charges of      cost
--   values first)   limit, a, b, c: the rule's CounterParams
--   per value       number of its charges; bytes of their records
--
-- Reply: doubles in one string, because Redis converts an array number by number
--   repaired        number of invalid values that were replaced
--   now             time of the decision in microseconds
--   per charge      retry: microseconds to wait, 0 allowed, -1 never, -2 undecided: the calendar bounds are too old
--                   remaining: units left after the call
--                   reset: microseconds until the budget is full
--
-- Record of a rule, in a value; the layout is in records.lua
--   record id       kind and rule id
--   expires         time in microseconds
--   numbers         state of the algorithm, see its file
--
-- "--- each record" repeats the lines up to "--- end" for each algorithm whose state is a record, "--- each own" for
-- each algorithm with its own key. ALGORITHM is replaced by a test of the charge's algorithm. A line with the name of a
-- section is replaced by that section of the algorithm's file:
--
--   functions   helpers for "decide" of an algorithm with its own key
--   call        checks all charges of a call; sets is_stale if their calendar bounds are too old
--   read        declares variables for the record's fields, fields[place + 2] onwards; sets field_count, their number
--   decide      reads these variables, expires (in the past if there is no record), algorithm, is_large, cost, limit,
--               a, b, c, counts_denied, and added: the cost to add if it fits. Sets the StepResult of
--               core/algorithms/base.py: retry, remaining, reset, charged_remaining; and the state after the call:
--               expires and the variables.
--               Sets is_changed to store the state of a refused call: a counted denial, or a correction after the clock
--               moved backwards. An algorithm with its own key reads key instead of fields, and also sets
--               charged_reset, and is_chargeable if the call may be charged
--   store       writes the variables to fields
--   write       charges at the algorithm's own key; may correct charged_remaining
--   wait        sets retry for another call like the one that was written
--
-- For speed, functions in tables are looked up only where they are needed, as a lookup costs as much as ten steps, and
-- existing variables are set one by one, as Lua copies the values of a multiple assignment twice.
local call, decode, encode, sub, KEYS, ARGV = redis.call, struct.unpack, struct.pack, string.sub, KEYS, ARGV
local DOUBLES = '<dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd'
local now, least_lifetime, next_arg
if #ARGV[1] < 24 then
  now, next_arg = tonumber(ARGV[1]), 2
  least_lifetime = 3600000000 -- in microseconds; keys expire by the server's clock, not by the test clock
else
  local time = call('TIME')
  now, next_arg, least_lifetime = time[1] * 1000000 + time[2], 1, 1000
end
-- Earliest expiry that a small record can hold: 2^47 microseconds ago, see records.lua.
local earliest = now - 140737488355328
local long_ago = now - 70368744177664 -- 2^46 microseconds: read as the past for the next two years, too
if long_ago < 0 then long_ago = 0 end -- a test clock may be near 0, and records hold no negative times
--- use constants
local CHARGE = 7 -- doubles of a charge in a request
local repaired, first_key, answers, answer_end = 0, 1, nil, 2
repeat
  local request_length = #ARGV[next_arg] / 8
  if request_length >= #DOUBLES then DOUBLES = '<' .. string.rep('d', request_length) end
  local request = { decode(sub(DOUBLES, 1, request_length + 1), ARGV[next_arg]) }
  answers = answers or request -- answers overwrite the part of the first request that has been read
  local flags, value_count, own_key_count = request[1], request[2], request[3]
  local commit, is_stale = flags % 2 == 1, false
  local last_charge, first_format = request_length - 2 * value_count, next_arg + 1
  local uid, lease, ttl
  next_arg = first_format + value_count
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

  -- Charges with their own key are decided before any record is charged.
  local is_granted, own_results = true, own_key_count > 0 and {}
  if own_key_count > 0 then
--- use lifetime
--- each own
--- functions
--- end
    for own_index = 1, own_key_count do
      local key = KEYS[first_key + value_count + own_index - 1]
      local i = last_charge + 1 - CHARGE * (own_key_count - own_index + 1)
      local algorithm, cost, limit, a = request[i + 1], request[i + 2], request[i + 3], request[i + 4]
      if not (cost >= 0 and cost < EXACT) then return redis.error_reply('ERR a cost is a whole number') end -- NaN too
      local is_shadow, counts_denied = algorithm % 64 >= 32, algorithm % 32 >= 16 and commit and cost > 0
      algorithm = algorithm % 16
      local retry, remaining, reset, charged_reset, is_chargeable = 0, 0, 0, 0, false
      if false then
--- each own
      elseif ALGORITHM then
--- decide
--- end
      end
      if retry ~= 0 and not is_shadow then is_granted = false end
      own_results[own_index] = { retry, remaining, reset, charged_reset, is_chargeable }
    end
  end

  -- Charges with a record. The first pass charges while it reads, as usually all charges fit. If a charge does not fit,
  -- a second pass reads all of them again. It decides a rule that counts refused calls twice: the second decision, a
  -- wait probe, tells how long another call like this one would wait.
  local is_charging = commit and is_granted
  -- State of one value. Several values have theirs in value_states.
  local value, is_moved, fields, is_written, latest_before, latest_after, records_size
  local value_states = value_count > 1 and {}
  local call_answer_end, is_second_pass, first_pass_repaired = answer_end, false, nil
  while true do
    local i, has_charged, is_wait_probe = 4, false, false
    for value_index = 1, value_count do
      local format = ARGV[first_format + value_index - 1]
      if not is_second_pass then
        local key = KEYS[first_key + value_index - 1]
        value = redis.pcall('GET', key)
        is_moved = false
        if not value then
          value = ''
        elseif value == '' or value.err then -- a foreign value
          call('DEL', key)
          value, repaired = '', repaired + 1
        end
      elseif value_states then
        value, is_moved = value_states[value_index][1], value_states[value_index][2]
      end
      local last_i = i + CHARGE * (request[last_charge + 2 * value_index - 1] - 1)
      records_size = request[last_charge + 2 * value_index]
      fields = #value >= records_size and { decode(format, value) } or {}
      is_written, latest_before, latest_after = false, 0, 0
      local place = 1 -- of the record's id in fields
      repeat
        local record_id, algorithm, cost, limit = request[i], request[i + 1], request[i + 2], request[i + 3]
        local a, b, c = request[i + 4], request[i + 5], request[i + 6]
        if not (cost >= 0 and cost < EXACT) then return redis.error_reply('ERR a cost is a whole number') end -- NaN too
        if fields[place] ~= record_id then
--- use arrange_records
        end
        local is_large, is_shadow, counts_denied, field_count, expires = false, false, false, 0, fields[place + 1]
        if algorithm >= 16 then
          is_large, is_shadow = algorithm >= 64, algorithm % 64 >= 32
          counts_denied = algorithm % 32 >= 16 and commit and cost > 0 and not is_wait_probe
          algorithm = algorithm % 16
        end
        if not is_large then expires = (expires - earliest) % 281474976710656 + earliest end
        local expires_before = expires
        if expires > latest_before and not is_wait_probe then latest_before = expires end
        local added = (is_charging or counts_denied) and cost or 0
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
        if retry ~= 0 and not is_shadow then is_granted, is_charging = false, false end
        if retry == 0 and added > 0 then
          is_written = true
          has_charged = true
          fields[place + 1] = expires
          remaining = charged_remaining
          reset = expires - now
        elseif is_changed and cost > 0 then
          if reset == 0 then expires = long_ago end
          is_written, fields[place + 1] = true, expires
        else
          expires = expires_before
        end
        if expires > latest_after then latest_after = expires end
        if is_wait_probe then
          answers[answer_end - 2], is_wait_probe = retry, false
        else
          answers[answer_end + 1] = retry
          answers[answer_end + 2] = remaining
          answers[answer_end + 3] = reset
          answer_end = answer_end + 3
          is_wait_probe = is_second_pass and counts_denied and retry == 0 and not is_shadow
        end
        if not is_wait_probe then
          i = i + CHARGE
          place = place + 2 + field_count
        end
      until i > last_i
      if value_states then
        value_states[value_index] = { value, is_moved, fields, is_written, latest_before, latest_after, records_size }
      end
    end
    if is_granted or is_second_pass or not has_charged then break end
    request = { decode(sub(DOUBLES, 1, request_length + 1), ARGV[first_format - 1]) }
    answer_end, is_second_pass, first_pass_repaired = call_answer_end, true, repaired
  end
  repaired = first_pass_repaired or repaired

  for value_index = 1, commit and value_count or 0 do
    local key = KEYS[first_key + value_index - 1]
    if value_states then
      value, is_moved, fields, is_written, latest_before, latest_after, records_size = unpack(value_states[value_index])
    end
    local records_text, tail_start
    if is_written then
      records_text, tail_start = encode(ARGV[first_format + value_index - 1], unpack(fields)), records_size + 1
    elseif call('PTTL', key) == -1 then -- another client removed the TTL
      records_text, tail_start, latest_after = '', 1, 0
    end
    if records_text then
      local tail_expiry, tail = 0, nil
      if tail_start <= #value then
--- use tail
      end
      -- If no record moves, overwrite the records in place: SETRANGE is faster than SET, and PTTL faster than PEXPIRE.
      local keeps_layout = not (is_moved or tail)
      if keeps_layout and latest_after == latest_before and call('PTTL', key) >= 0 then
        call('SETRANGE', key, '0', records_text)
      else
        local ttl_ms = math.max(latest_after, tail_expiry) - now
        ttl_ms = (ttl_ms < least_lifetime and least_lifetime or ttl_ms) + 999
        ttl_ms = (ttl_ms - ttl_ms % 1000) / 1000
        if keeps_layout then
          call('SETRANGE', key, '0', records_text)
          call('PEXPIRE', key, ttl_ms)
        else
          call('SET', key, records_text .. (tail or sub(value, tail_start)), 'PX', ttl_ms)
        end
      end
    end
  end

  if own_key_count > 0 then
--- use lifetime
    for own_index = 1, own_key_count do
      local key = KEYS[first_key + value_count + own_index - 1]
      local i = last_charge + 1 - CHARGE * (own_key_count - own_index + 1)
      local algorithm, cost, limit = request[i + 1], request[i + 2], request[i + 3]
      local retry, remaining, reset, charged_reset, is_chargeable = unpack(own_results[own_index])
      if commit and cost > 0 then
        if is_chargeable and (is_granted or algorithm % 32 >= 16) then
          local is_shadow, charged_remaining = algorithm % 64 >= 32, remaining - cost
          algorithm = algorithm % 16
          if false then
--- each own
          elseif ALGORITHM then
--- write
--- end
          end
          remaining, reset = charged_remaining, charged_reset
          if not is_granted and not is_shadow and remaining < cost then
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
      answers[answer_end + 1], answers[answer_end + 2], answers[answer_end + 3] = retry, remaining, reset
      answer_end = answer_end + 3
    end
  end

  if is_stale then
    for i = call_answer_end + 1, answer_end do answers[i] = -2 end
  end
  first_key = first_key + value_count + own_key_count
until not KEYS[first_key]
if answer_end >= #DOUBLES then DOUBLES = '<' .. string.rep('d', answer_end) end
answers[1], answers[2] = repaired, now
return encode(sub(DOUBLES, 1, answer_end + 1), unpack(answers, 1, answer_end))
