-- Included in other scripts, which have set `now`: functions for records.
--
-- The value of an ident is a sequence of records, one per rule, in any order. All numbers are little-endian:
--
--   field             small record             large record
--   kind              1 byte: 128 + count      1 byte: 192 + count     count: the numbers of the algorithm
--   rule id           5 bytes                  5 bytes
--   expires           6 bytes: modulo 2^48     7 bytes                 time in microseconds
--   numbers           4 bytes each             8 bytes each, a double  see the algorithm's file
--
-- Kind and rule id together are the record id, which scripts read as one number. The expiry of a small record is the
-- time nearest to now with these 48 bits, so it is within four years. A summary record (kind 193, rule id 0) is
-- described in tail.lua.

-- Return the size in bytes of a record of this kind, nil if the kind is invalid.
local function size_of(kind)
  if not kind or kind < 128 then return nil end
  return kind < 192 and 4 * kind - 500 or 8 * kind - 1523
end

-- Return the struct format of a record: record id, expiry, up to three numbers, and the other numbers as one string.
local function format_of(kind)
  local numbers, is_large = kind % 64, kind >= 192
  local format = (is_large and '<I6I7' or '<I6I6') .. string.rep(is_large and 'd' or 'I4', math.min(numbers, 3))
  return numbers > 3 and format .. 'c' .. (is_large and 8 or 4) * (numbers - 3) or format
end

-- Return the expiry of the record that begins at `from`, in microseconds.
local function expires_of(value, from)
  if string.byte(value, from) >= 192 then return (struct.unpack('<I7', value, from + 6)) end
  local low = struct.unpack('<I6', value, from + 6)
  local earliest = now - 140737488355328
  return (low - earliest) % 281474976710656 + earliest
end

-- Return a record without its numbers.
local function record_header(record_id, expires)
  return struct.pack(record_id % 256 < 192 and '<I6I6' or '<I6I7', record_id, expires)
end

-- Return a record whose numbers are 0.
local function blank(record_id, expires)
  local record = record_header(record_id, expires)
  return record .. string.rep('\0', size_of(record_id % 256) - #record)
end

-- Find a rule's record from the record at `from` onwards. Return where it begins, where the next record begins, and
-- whether its kind is that of `record_id`. Without a record return nil, and where the value's valid records end.
local function seek(value, record_id, from)
  local rule_id, size, decode = record_id - record_id % 256, #value, struct.unpack
  while from + 11 <= size do
    local stored_id = decode('<I6', value, from)
    local kind = stored_id % 256
    local next_record = from + (size_of(kind) or size + 1)
    if next_record > size + 1 then break end
    if stored_id - kind == rule_id then return from, next_record, stored_id == record_id end
    from = next_record
  end
  return nil, from
end
