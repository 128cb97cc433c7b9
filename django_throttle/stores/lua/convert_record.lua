-- Included in other scripts, which also include records.lua.
-- Return the record at `from` converted to the kind of `record_id`, as the kind depends on the rule's limit, which may
-- have been edited.
local function convert_record(value, from, record_id)
  local kind, old_kind, expires = record_id % 256, string.byte(value, from), expires_of(value, from)
  local position = from + (old_kind < 192 and 12 or 13)
  if kind % 64 == 0 and old_kind % 64 > 0 and struct.unpack(old_kind < 192 and '<I4' or '<d', value, position) > 0 then
    expires = expires - 1 -- it was rounded up because of the fraction, see gcra.lua, which is dropped
  end
  -- The latest time of a small record is 2^47 microseconds (four years) from now.
  if kind < 192 then expires = math.min(expires, now + 140737488355327) end
  local record, numbers = record_header(record_id, expires), {}
  for i = 1, kind % 64 do
    local number = 0
    if i <= old_kind % 64 then number, position = struct.unpack(old_kind < 192 and '<I4' or '<d', value, position) end
    if kind < 192 then number = number >= 0 and math.min(number, 9007199254740991) or 0 end -- NaN becomes 0
    numbers[i] = number
  end
  if kind < 192 and #numbers > 2 then -- counts of sub-windows; the second number is a sum, see sub_windows.lua
    -- The limit of a small record is lower, see sliding_window.py.
    local max_count = math.floor(4294967295 / (#numbers - 1))
    for i = 4, #numbers do
      numbers[2], numbers[i] = numbers[2] - numbers[i], math.min(numbers[i], max_count)
    end
    numbers[2] = math.max(0, math.min(numbers[2], max_count))
    for i = 4, #numbers do numbers[2] = numbers[2] + numbers[i] end
  end
  for i, number in ipairs(numbers) do
    record = record .. (kind < 192 and struct.pack('<I4', math.min(number, 4294967295)) or struct.pack('<d', number))
  end
  return record
end
