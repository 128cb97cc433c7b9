-- Gives back what was charged a moment ago, as if it had not been; never more than that, and never less than what
-- it kept anybody else from getting.
-- KEYS: one a charge, then, where a second time must change nothing, a key by which it is known; all of one slot.
-- ARGV: now in microseconds ("" for the server's clock), the charges, and with that key the milliseconds for which it is
-- kept. A charge is little-endian:
--
--   double     head of its record (records.lua)
--   byte       algorithm
--   7 doubles  cost; of the rule's plan limit, a, b, c; when it was charged; and the microseconds to full answered then
--
-- Reply: the number of charges given back.
-- The sections "refund" of the algorithms, see decide.lua, change the state and set goes_back; expires is 0 when nothing
-- is left to store. One with a key of its own writes, and counts `refunded`, by itself.
local decode, encode, sub = struct.unpack, struct.pack, string.sub
--- use clock
--- use constants
if ARGV[3] and not redis.call('SET', KEYS[#KEYS], '1', 'NX', 'PX', ARGV[3]) then return 0 end
--- use records
--- use unsummed
local offset, refunded = 1, 0

for i = 1, ARGV[3] and #KEYS - 1 or #KEYS do
  local key = KEYS[i]
  local head, algorithm, cost, limit, a, b, c, since, reset
  head, algorithm, cost, limit, a, b, c, since, reset, offset = decode('<dBddddddd', ARGV[2], offset)
  local from, after, fits, fields, expires, goes_back
  local value = algorithm < 10 and redis.pcall('GET', key)
  if type(value) == 'string' then from, after, fits = seek(value, head, 1) end
  local place, numbers, is_large, format = 1, 0, head % 256 >= 192, format_of(head % 256)
  if fits then fields, expires = { decode(format, value, from) }, expires_of(value, from) end
  if algorithm < 10 and not fits then -- nothing, or a foreign value
--- each
  elseif ALGORITHM then
--- read
--- refund
--- store
--- end
  end
  if goes_back then
    fields[2] = expires
    local left = expires > 0 and encode(format, unpack(fields)) or ''
    value = unsummed(sub(value, 1, from - 1) .. left .. sub(value, after))
    if value == '' then redis.call('DEL', key) else redis.call('SET', key, value, 'KEEPTTL') end
    refunded = refunded + 1
  end
end
return refunded
