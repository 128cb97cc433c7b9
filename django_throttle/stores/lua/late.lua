-- Charges once, whatever the limits, what a process admitted by itself while this server was unavailable.
-- KEYS: one a charge, then the one by which a second time is known; all of one slot.
-- ARGV: now in microseconds ("" for the server's clock), the time to live of that one in milliseconds, the charges. A charge
-- is little-endian:
--
--   double     head of its record (records.lua)
--   byte       algorithm
--   6 doubles  cost; of the rule's plan limit, a, b, c; and how long ago it was made, in microseconds
--
-- Reply: the number of charges made, without those whose window is over.
-- The sections "late" of the algorithms, see decide.lua, change the state, and set is_made. One with a key of its own
-- writes, and counts `made`, by itself.
local decode, encode, sub = struct.unpack, struct.pack, string.sub
--- use clock
--- use constants
if not redis.call('SET', KEYS[#KEYS], '1', 'NX', 'PX', ARGV[2]) then return 0 end
--- use records
--- use converted
--- use unsummed

local function lifetime(time)
  return math.max(least_lifetime, math.ceil(time / 1000))
end

local offset, made = 1, 0
for i = 1, #KEYS - 1 do
  local key, head, algorithm, cost, limit, a, b, c, age = KEYS[i]
  head, algorithm, cost, limit, a, b, c, age, offset = decode('<dBdddddd', ARGV[3], offset)
  local at = now - math.max(0, age)
  local expires, is_made = 0, false
  local value = algorithm < 10 and redis.pcall('GET', key)
  if type(value) ~= 'string' or not size_of(string.byte(value)) then value = '' end -- none, or a foreign value
  local from, after, fits = seek(value, head, 1)
  if from and not fits then
    local record = converted(value, from, head)
    value = sub(value, 1, from - 1) .. record .. sub(value, after)
    after, fits = from + #record, true
  end
  if fits then expires = expires_of(value, from) end
  local place, numbers, is_large, format = 1, 0, head % 256 >= 192, format_of(head % 256)
  local fields = { decode(format, fits and sub(value, from, after - 1) or blank(head, 0)) }
  if false then
--- each
  elseif ALGORITHM then
--- read
--- late
--- store
--- end
  end
  if is_made then
    fields[2] = expires
    local written = encode(format, unpack(fields))
    value = from and sub(value, 1, from - 1) .. written .. sub(value, after) or value .. written
    redis.call('SET', key, unsummed(value), 'PX', math.max(lifetime(expires - now), redis.call('PTTL', key)))
    made = made + 1
  end
end
return made
