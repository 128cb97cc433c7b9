-- A function for other scripts, which use records.lua. KEYS, ARGV, reply: theirs.
-- A record with this head that says what one of another kind says, as of the same rule before its limit was edited.
local function converted(value, from, head)
  local kind, before, expires = head % 256, string.byte(value, from), expires_of(value, from)
  local at = from + (before < 192 and 12 or 13)
  if kind % 64 == 0 and before % 64 > 0 and struct.unpack(before < 192 and '<I4' or '<d', value, at) > 0 then
    expires = expires - 1 -- without the fraction, see gcra.lua, that was rounded up
  end
  -- A small record has no later time: what would be full in more than four years is full then.
  if kind < 192 then expires = math.min(expires, now + 140737488355327) end
  local record, numbers = begun(head, expires), {}
  for place = 1, kind % 64 do
    local number = 0
    if place <= before % 64 then number, at = struct.unpack(before < 192 and '<I4' or '<d', value, at) end
    if kind < 192 then number = number >= 0 and math.min(number, 9007199254740991) or 0 end -- not a number: 0
    numbers[place] = number
  end
  if kind < 192 and #numbers > 2 then -- the counts of sub-windows, and in the second place a sum of them
    local most = math.floor(4294967295 / (#numbers - 1)) -- the limit is no higher, see sliding_window.py
    for place = 4, #numbers do
      numbers[2], numbers[place] = numbers[2] - numbers[place], math.min(numbers[place], most)
    end
    numbers[2] = math.max(0, math.min(numbers[2], most))
    for place = 4, #numbers do numbers[2] = numbers[2] + numbers[place] end
  end
  for place, number in ipairs(numbers) do
    record = record .. (kind < 192 and struct.pack('<I4', math.min(number, 4294967295)) or struct.pack('<d', number))
  end
  return record
end
