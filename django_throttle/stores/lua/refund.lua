-- Gives back what was charged a moment ago, as if it had not been; never more than that, and never less than what
-- it kept anybody else from getting.
-- KEYS: one a charge, all of one slot. ARGV: now in microseconds ("" for the server's clock), then for each charge a
-- byte and seven big-endian doubles: algorithm, cost, the rule's plan (limit, a, b, c), when it was charged, and the
-- microseconds to full that were answered then. Reply: the number of charges given back.
-- The sections "refund" of the algorithms, see decide.lua, set `left`: the text to store, empty when nothing is left to
-- store. One whose state is no text writes, and counts `refunded`, by itself.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local place, refunded = 1, 0

for _, key in ipairs(KEYS) do
  local algorithm, cost, limit, a, b, c, since, reset
  algorithm, cost, limit, a, b, c, since, reset, place = struct.unpack('>Bddddddd', ARGV[2], place)
  local state = algorithm < 10 and redis.pcall('GET', key)
  local left
  if algorithm < 10 and type(state) ~= 'string' then -- nothing, or a foreign value
--- refund
  end
  if left then
    if left == '' then redis.call('DEL', key) else redis.call('SET', key, left, 'KEEPTTL') end
    refunded = refunded + 1
  end
end
return refunded
