-- Charge calls that a process admitted by itself while this server was unavailable, even beyond the limits.
--
-- KEYS[1...n]   per charge: value of its ident (records.lua), or the algorithm's own key
-- KEYS[n + 1]   marker that makes a repeated call change nothing; all keys share a slot
-- ARGV[1]       current time in microseconds; "" for the server's clock
-- ARGV[2]       TTL of the marker in milliseconds
-- ARGV[3]       the charges, in the layout below
-- Reply         number of charges made, without those whose window has ended
--
-- Charge: little-endian
--   double        record id (records.lua)
--   byte          algorithm
--   double        cost
--   4 doubles     limit, a, b, c: the rule's CounterParams
--   double        age in microseconds
--
-- The "backfill" section of an algorithm, see decide.lua, charges the state as of the time `charged_at`, and sets
-- is_charged. An algorithm with its own key writes it, and increments `charged`.
local decode, encode, sub = struct.unpack, struct.pack, string.sub
--- use clock
--- use constants
if not redis.call('SET', KEYS[#KEYS], '1', 'NX', 'PX', ARGV[2]) then return 0 end
--- use records
--- use convert_record
--- use drop_summary

local function lifetime(time)
  return math.max(least_lifetime, math.ceil(time / 1000))
end

local offset, charged = 1, 0
for i = 1, #KEYS - 1 do
  local key, record_id, algorithm, cost, limit, a, b, c, age = KEYS[i]
  record_id, algorithm, cost, limit, a, b, c, age, offset = decode('<dBdddddd', ARGV[3], offset)
  local charged_at = now - math.max(0, age)
  local expires, is_charged = 0, false
  local value = algorithm < 10 and redis.pcall('GET', key)
  if type(value) ~= 'string' or not size_of(string.byte(value)) then value = '' end -- no value, or a foreign one
  local from, next_record, fits = seek(value, record_id, 1)
  if from and not fits then
    local record = convert_record(value, from, record_id)
    value = sub(value, 1, from - 1) .. record .. sub(value, next_record)
    next_record, fits = from + #record, true
  end
  if fits then expires = expires_of(value, from) end
  local place, field_count, is_large, format = 1, 0, record_id % 256 >= 192, format_of(record_id % 256)
  local fields = { decode(format, fits and sub(value, from, next_record - 1) or blank(record_id, 0)) }
  if false then
--- each
  elseif ALGORITHM then
--- read
--- backfill
--- store
--- end
  end
  if is_charged then
    fields[2] = expires
    local written = encode(format, unpack(fields))
    value = from and sub(value, 1, from - 1) .. written .. sub(value, next_record) or value .. written
    redis.call('SET', key, drop_summary(value), 'PX', math.max(lifetime(expires - now), redis.call('PTTL', key)))
    charged = charged + 1
  end
end
return charged
