-- Functions for other scripts, which have set `now`. KEYS, ARGV, reply: theirs.
-- A record begins with its head, six bytes: its kind, and the rule's id. A kind of 128 and more is that of a small record,
-- which has six bytes of the time at which it runs out, and four of each number; one of 192 and more that of a large one,
-- with seven of the time, and numbers that are doubles. What is beyond 128 or 192 is how many numbers it has.
-- The bytes of a record of this kind; nil where there is no such kind.
local function size_of(kind)
  if not kind or kind < 128 then return nil end
  return kind < 192 and 4 * kind - 500 or 8 * kind - 1523
end

-- When a record runs out. Of a small one's time the rest is as near to now as it can be: within four years.
local function expires_of(value, from)
  if string.byte(value, from) >= 192 then return (struct.unpack('<I7', value, from + 6)) end
  local low = struct.unpack('<I6', value, from + 6)
  local earliest = now - 140737488355328
  return (low - earliest) % 281474976710656 + earliest
end

-- A record as it begins, without its numbers.
local function begun(head, expires)
  return struct.pack(head % 256 < 192 and '<I6I6' or '<I6I7', head, expires)
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
