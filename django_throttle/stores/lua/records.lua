-- Functions for other scripts, which have set `now`. KEYS, ARGV, reply: theirs.
-- The value of an ident is a row of records, one a rule. All numbers are little-endian:
--
--   bytes                    small record        large record
--   kind                     128 + numbers       192 + numbers
--   id of the rule           5 bytes             5 bytes
--   when it runs out         6 bytes, see below  7 bytes
--   numbers of an algorithm  4 bytes each        8 bytes each, a double
--
-- Kind and id are its head, read as one number. Times are microseconds. Of a small record's time the rest is as near to
-- now as it can be: within four years.

-- The bytes of a record of this kind; nil where there is no such kind.
local function size_of(kind)
  if not kind or kind < 128 then return nil end
  return kind < 192 and 4 * kind - 500 or 8 * kind - 1523
end

-- The format of a record's fields: head, when it runs out, three numbers, and all others as one text.
local function format_of(kind)
  local numbers, is_large = kind % 64, kind >= 192
  local format = (is_large and '<I6I7' or '<I6I6') .. string.rep(is_large and 'd' or 'I4', math.min(numbers, 3))
  return numbers > 3 and format .. 'c' .. (is_large and 8 or 4) * (numbers - 3) or format
end

-- When the record at a place runs out.
local function expires_of(value, from)
  if string.byte(value, from) >= 192 then return (struct.unpack('<I7', value, from + 6)) end
  local low = struct.unpack('<I6', value, from + 6)
  local earliest = now - 140737488355328
  return (low - earliest) % 281474976710656 + earliest
end

-- The beginning of a record, without its numbers.
local function begun(head, expires)
  return struct.pack(head % 256 < 192 and '<I6I6' or '<I6I7', head, expires)
end

-- A record whose numbers are 0.
local function blank(head, expires)
  local record = begun(head, expires)
  return record .. string.rep('\0', size_of(head % 256) - #record)
end

-- Where a record of this id begins and where the one after it, and whether it is of the same kind; `from` is where to
-- begin. Where there is none: nil, and where the value ends, or what is no record begins.
local function seek(value, head, from)
  local id, size, decode = head - head % 256, #value, struct.unpack
  while from + 11 <= size do
    local found = decode('<I6', value, from)
    local kind = found % 256
    local after = from + (size_of(kind) or size + 1)
    if after > size + 1 then break end
    if found - kind == id then return from, after, found == head end
    from = after
  end
  return nil, from
end
