-- The idents that a rule refused most in an hour (see record.lua).
-- KEYS: ranking (STRING, MessagePack). ARGV: none. Reply: how much counts may lack, then idents and counts in turns.
local try = pcall
if redis.call('TYPE', KEYS[1]).ok ~= 'string' then return {0} end
local is_read, counts = try(cmsgpack.unpack, redis.call('GET', KEYS[1]))
if not is_read or type(counts) ~= 'table' then return {0} end
local reply = {tonumber(counts['']) or 0}
for ident, count in pairs(counts) do
  if ident ~= '' then
    reply[#reply + 1] = tostring(ident)
    reply[#reply + 1] = tonumber(count) or 0
  end
end
return reply
