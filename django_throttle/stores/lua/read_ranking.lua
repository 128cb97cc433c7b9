-- The idents that a rule refused most in an hour (see record.lua).
-- KEYS: ranking (HASH "top": MessagePack, "error"). ARGV: none.
-- Reply: how much counts may lack, then idents and counts in turns.
local try = pcall
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then return {0} end
local is_read, counts = try(cmsgpack.unpack, redis.call('HGET', KEYS[1], 'top') or '')
local reply = {tonumber(redis.call('HGET', KEYS[1], 'error') or nil) or 0}
if is_read and type(counts) == 'table' then
  for ident, count in pairs(counts) do
    reply[#reply + 1] = tostring(ident)
    reply[#reply + 1] = tonumber(count) or 0
  end
end
return reply
