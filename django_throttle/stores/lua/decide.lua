-- Decides calls, each as one: all of its charges are made, or none.
-- Assembled by stores/scripts.py for calls of one shape, with what every charge and every value needs in a row: there is
-- no table and no function for a charge on the usual way. What stands between "--- each …" and "--- end" is repeated for
-- each value, for each charge with a record in one (record), with a key of its own (own), or with either (charge);
-- _i is then the charge's number, _v the value's, and a word in capitals is replaced by a list.
-- KEYS: of each call the values of its idents, see stores/packing.py, and the keys of its sliding logs and leases.
-- Variables that are there already are set one by one: Lua copies the values of an assignment to several twice.
-- ARGV: the calls, then now in microseconds (none or "" for the server's clock). A call is a byte of flags (1 commit, 2
-- with a lease), and for each charge a double, the six bytes that begin its record (seek.lua) as a number, a byte of flags
-- (1 counts denied, 2 shadow), and doubles, the cost and those numbers that the rule's plan has: limit, a, b, c. All
-- little-endian, and nothing in between, as skipping a byte takes as long as reading two. Then for each call with a lease:
-- uid of the caller, lease, the lease's time to live in milliseconds.
-- Reply: doubles in one text, which is read at once where an array is read number by number: values repaired, the time,
-- then three a charge: retry (-1 never), remaining, reset; times in microseconds, as they stand afterwards.
-- Sections of the algorithms:
-- "state" names the numbers of a record, each in a comment; with a * after it, it is the text of all that are left.
-- "decide" reads them, expires (long ago where there is no record, as good as one that ran out), algorithm, cost, limit, a,
-- b, c and counts_denied. It sets the StepResult of core/algorithms/base.py: retry, remaining, reset, charged_remaining, and
-- expires and the state as the call leaves them, with `added` of the cost charged. It sets is_changed where that is to be
-- stored although the call is refused: a counted denial, or a state that the clock, set back, has made wrong.
-- One with a key of its own (its number is 10 or more) sets `writes` and charged_reset where it may be charged instead,
-- and has a section "write", and "wait", which sets `retry` of a call like the one that was written.
-- Sections "before" define functions and check all calls beforehand, "call" begins a call. Times are microseconds.
-- What the usual way does not need is not looked up beforehand: a function in a table takes as long as ten steps.
local call, decode, encode = redis.call, struct.unpack, struct.pack
local given, place, first, repaired, replies = ARGV, 1, 0, 0, nil
local blob, now = given[1], given[2]
now = now and tonumber(now)
-- Keys expire by the server's clock, not by a test's: then they get an hour.
local least_lifetime = now and 3600000000 or 1000
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
-- Of the time at which a small record runs out, see seek.lua, the first that there may be.
local earliest = now - 140737488355328
local long_ago = now - 70368744177664 -- runs out in no year to come, either
if long_ago < 0 then long_ago = 0 end -- by a clock of tests; there is no sign in a record
local NEVER, MAX_LIMIT, EXACT = -1, 999999999999999, 9007199254740992
-- What begins a record that tells of those that follow it, which were not asked for: a large one of the id 0, which runs
-- out when the last of them does, and has in seven bytes, and one that is not read, when the first one does.
local SUMMARY = 193
--- before
DECLARED
repeat
  local flags_of_call
  REQUEST
  local commit, granted = flags_of_call % 2 == 1, true
--- call
--- each own
  do
    local key, algorithm, cost, NUMBERS = KEYS[first + KEY_i], ALGORITHM_i, cost_i, NUMBERS_i
    if not (cost >= 0 and cost < EXACT) then return redis.error_reply('ERR a cost is a whole number') end -- NaN too
    local counts_denied = flags_i % 2 == 1 and commit and cost > 0
    local retry, remaining, reset, charged_reset, writes = 0, 0, 0, 0, nil
--- decide
    if retry ~= 0 and flags_i < 2 then granted = false end
    retry_i, remaining_i, reset_i, charged_i, writes_i = retry, remaining, reset, charged_reset, writes
  end
--- end
--- each value
  key_v = KEYS[first + KEY_v]
  value_v = redis.pcall('GET', key_v)
  is_moved_v = false
  if not value_v then
    value_v = ''
  elseif value_v == '' or value_v.err then -- a foreign value
    call('DEL', key_v)
    value_v, repaired = '', repaired + 1
  end
--- end
  -- Up to three times: as if all is charged, then what is stored of a refused call, then how long that has others wait.
  local charges, keeps, is_stored = granted, false, false
  local repaired_before = repaired
  while true do
    if not is_stored then
--- each value
    is_written_v = false
    for _ = 1, 2 do
      READ_v
      -- Not as asked for: bring the records that are to the front, and make those that are not.
      local value, at, ahead = value_v, 1, 1
--- use seek
--- use converted
      if value ~= '' and not size_of(string.byte(value)) then -- a foreign value
        repaired, value = repaired + 1, ''
      end
      for _, head in ipairs({ HEADS_v }) do
        local from, after, fits = seek(value, head, ahead) -- most often they are in the same order
        if not from and after <= #value then -- what follows is no record
          repaired, value = repaired + 1, string.sub(value, 1, after - 1)
        end
        if not from and ahead > at then from, after, fits = seek(value, head, at) end
        local record
        if fits then
          record = string.sub(value, from, after - 1)
        elseif from then
          record = converted(value, from, head)
        else
          record = begun(head, long_ago)
          record = record .. string.rep('\0', size_of(head % 256) - #record)
        end
        local rest = from and string.sub(value, at, from - 1) .. string.sub(value, after) or string.sub(value, at)
        value = string.sub(value, 1, at - 1) .. record .. rest
        at = at + #record
        ahead = from and from + #record or at
      end
      value_v, is_moved_v = value, true
    end
    local longest
    LONGEST_v
    lasted_v = longest
--- end
    end
--- each record
    if not is_stored or (flags_i == 1 and cost_i > 0 and retry_i == 0) then
      local algorithm, cost, NUMBERS = ALGORITHM_i, cost_i, NUMBERS_i
      if not (cost >= 0 and cost < EXACT) then return redis.error_reply('ERR a cost is a whole number') end -- NaN too
      local counts_denied = flags_i % 2 == 1 and commit and cost > 0 and not is_stored
      local added = (charges or counts_denied) and cost or 0
      local retry, remaining, reset, charged_remaining, is_changed = 0, 0, 0, 0, counts_denied
      local STATE = STATE_i
--- decide
      if retry ~= 0 and flags_i < 2 then granted = false end
      if cost > 0 then
        if retry == 0 and added > 0 then
          STORE_i
          is_written_v = true
          keeps = keeps or is_changed
        elseif is_changed then
          STORE_i
          is_written_v, keeps = true, true
          if reset == 0 then expires_i = long_ago end
        end
      end
      retry_i = retry
      remaining_i = remaining
      reset_i = reset
      charged_i = is_stored and remaining or charged_remaining
    end
--- end
    if granted or is_stored or not keeps then break end
    if charges then
      charges, repaired = false, repaired_before
    else
      is_stored = true
    end
  end
  if commit then
--- each record
    if cost_i > 0 and retry_i == 0 and (granted or flags_i % 2 == 1) then
      remaining_i = charged_i
      reset_i = expires_i - now
    end
--- end
--- each value
    do
      local text, at, longest = nil, AFTER_v, 0
      if is_written_v and (granted or keeps) then
        text = RECORDS_v
        LONGEST_v
      elseif (COSTS_v) and call('PTTL', key_v) == -1 then -- somebody made it immortal
        text, at = '', 1
      end
      if text then
        local size, latest, others = #value_v, 0, nil
        if at <= size then -- records that were not asked for
          local head, soonest
          if size - at >= 20 then head, latest, soonest = decode('<I6I7I7', value_v, at) end
          if head ~= SUMMARY or soonest <= now then -- without those that have run out
--- use seek
            local from = at
            latest, soonest, others = 0, EXACT, ''
            while at <= size do
              local after, first_expires = at + (size_of(string.byte(value_v, at)) or EXACT), nil
              if after > size + 1 then -- no record
                size = at - 1
                break
              end
              local expires = expires_of(value_v, at)
              head = decode('<I6', value_v, at)
              if head == SUMMARY then first_expires = decode('<I7', value_v, at + 13) end
              if head == SUMMARY or expires <= now then
                others, from = others .. string.sub(value_v, from, at - 1), after
              end
              if expires > now and (head ~= SUMMARY or first_expires > now) then
                if expires > latest then latest = expires end
                if not first_expires then first_expires = expires end
                if first_expires < soonest then soonest = first_expires end
                if head == SUMMARY then break end -- the rest is as it says
              end
              at = after
            end
            others = others .. string.sub(value_v, from, size)
            if others ~= '' then others = encode('<I6I7I7B', SUMMARY, latest, soonest, 0) .. others end
          end
        end
        -- Where nothing moves, what changed is written in its place: that takes less than to set the key. To look whether
        -- it has a time to live still takes less than to set that again.
        local stays = not (is_moved_v or others)
        if stays and longest == lasted_v and call('PTTL', key_v) >= 0 then
          call('SETRANGE', key_v, '0', text)
        else
          local lasts = math.max(longest, latest) - now
          lasts = (lasts < least_lifetime and least_lifetime or lasts) + 999
          lasts = (lasts - lasts % 1000) / 1000
          if stays then
            call('SETRANGE', key_v, '0', text)
            call('PEXPIRE', key_v, lasts)
          else
            call('SET', key_v, text .. (others or string.sub(value_v, at)), 'PX', lasts)
          end
        end
      end
    end
--- end
--- each own
    if cost_i > 0 then
      local key, algorithm, cost, limit, remaining, charged_reset =
        KEYS[first + KEY_i], ALGORITHM_i, cost_i, limit_i, remaining_i, charged_i
      local charged_remaining = remaining - cost
      if writes_i and (granted or flags_i % 2 == 1) then
--- write
        remaining_i, reset_i = charged_remaining, charged_reset
        if not granted and flags_i == 1 and charged_remaining < cost then
--- wait
          retry_i = retry
        end
      elseif call('PTTL', key) == -1 then
        call('PEXPIRE', key, lifetime(reset_i))
      end
    end
--- end
  end
  first = first + KEYS_OF_CALL
  if not replies and place > #blob then
    return encode(WHOLE_FORMAT, repaired, now, ANSWERS)
  end
  replies = (replies or '') .. encode(ANSWER_FORMAT, ANSWERS)
until place > #blob
return encode('<dd', repaired, now) .. replies
