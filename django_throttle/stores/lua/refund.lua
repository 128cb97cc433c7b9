-- Refund charges as if they had not been made. A refund never exceeds its charge, and never gives back units of others.
--
-- KEYS[1...n]   per charge: value of its ident (records.lua), or the algorithm's own key
-- KEYS[n + 1]   optional: marker that makes a repeated call change nothing; all keys share a slot
-- ARGV[1]       current time in microseconds; "" for the server's clock
-- ARGV[2]       the charges, in the layout below
-- ARGV[3]       optional, with the marker: its TTL in milliseconds
-- Reply         number of refunded charges
--
-- Charge: little-endian
--   double        record id (records.lua)
--   byte          algorithm
--   double        cost
--   4 doubles     limit, a, b, c: the rule's CounterParams
--   double        time of the charge in microseconds (charged_at)
--   double        microseconds until the budget was full, as answered then (reset)
--
-- The "refund" section of an algorithm, see decide.lua, changes the state and sets is_refunded. It sets expires to 0 if
-- nothing is left to store. An algorithm with its own key writes it, and increments `refunded`.
local decode, encode, sub = struct.unpack, struct.pack, string.sub
--- use clock
--- use constants
if ARGV[3] and not redis.call('SET', KEYS[#KEYS], '1', 'NX', 'PX', ARGV[3]) then return 0 end
--- use records
--- use drop_summary
local offset, refunded = 1, 0

for i = 1, ARGV[3] and #KEYS - 1 or #KEYS do
  local key = KEYS[i]
  local record_id, algorithm, cost, limit, a, b, c, charged_at, reset
  record_id, algorithm, cost, limit, a, b, c, charged_at, reset, offset = decode('<dBddddddd', ARGV[2], offset)
  local from, next_record, fits, fields, expires, is_refunded
  local value = algorithm < 10 and redis.pcall('GET', key)
  if type(value) == 'string' then from, next_record, fits = seek(value, record_id, 1) end
  local place, field_count, is_large, format = 1, 0, record_id % 256 >= 192, format_of(record_id % 256)
  if fits then fields, expires = { decode(format, value, from) }, expires_of(value, from) end
  if algorithm < 10 and not fits then -- no record, or a foreign value
--- each
  elseif ALGORITHM then
--- read
--- refund
--- store
--- end
  end
  if is_refunded then
    fields[2] = expires
    local left = expires > 0 and encode(format, unpack(fields)) or ''
    value = drop_summary(sub(value, 1, from - 1) .. left .. sub(value, next_record))
    if value == '' then redis.call('DEL', key) else redis.call('SET', key, value, 'KEEPTTL') end
    refunded = refunded + 1
  end
end
return refunded
