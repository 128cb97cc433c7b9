-- A function for other scripts, which use seek.lua. KEYS, ARGV, reply: theirs.
-- A record with this head that says what one of another kind says, as of the same rule before its limit was edited.
local function converted(value, from, head)
  local kind, before, expires = head % 256, string.byte(value, from), expires_of(value, from)
  local at = from + (before < 192 and 12 or 13)
  if kind % 64 == 0 and before % 64 > 0 and struct.unpack(before < 192 and '<I4' or '<d', value, at) > 0 then
    expires = expires - 1 -- without the fraction, see gcra.lua, that was rounded up
  end
  local record = begun(head, expires)
  for place = 1, kind % 64 do
    local number = 0
    if place <= before % 64 then number, at = struct.unpack(before < 192 and '<I4' or '<d', value, at) end
    if kind >= 192 then
      record = record .. struct.pack('<d', number)
    else
      record = record .. struct.pack('<I4', number >= 0 and math.min(number, 4294967295) or 0) -- not a number: 0
    end
  end
  return record
end
