-- Makes rates full again. KEYS: values of idents, see decide.lua, and other counters, all of one slot or on one server.
-- ARGV: now in microseconds ("" for the server's clock), then for each key what begins the records to be removed
-- (records.lua), a little-endian double each; "" removes the key. Reply: the number of records that had not run out, and of keys.
local decode, sub = struct.unpack, string.sub
--- use clock
--- use records
--- use unsummed
local removed = 0
for i, key in ipairs(KEYS) do
  local heads = ARGV[i + 1]
  local value = heads ~= '' and redis.pcall('GET', key)
  if type(value) ~= 'string' or not size_of(string.byte(value)) then
    removed = removed + redis.call('DEL', key)
  else
    for at = 1, #heads, 8 do
      local from, after = seek(value, (decode('<d', heads, at)), 1)
      if from then
        if expires_of(value, from) > now then removed = removed + 1 end
        value = sub(value, 1, from - 1) .. sub(value, after)
      end
    end
    value = unsummed(value)
    if value == '' then redis.call('DEL', key) else redis.call('SET', key, value, 'KEEPTTL') end
  end
end
return removed
