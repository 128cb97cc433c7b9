-- Reset budgets: remove records of values, or whole keys.
--
-- KEYS          values of idents (records.lua), and other counters; all in one slot or on one server
-- ARGV[1]       current time in microseconds; "" for the server's clock
-- ARGV[2...]    per key: record ids to remove (little-endian doubles, see records.lua); "" removes the key
-- Reply         number of removed records that had not expired, plus number of removed keys
local decode, sub = struct.unpack, string.sub
--- use clock
--- use records
--- use drop_summary
local removed = 0
for i, key in ipairs(KEYS) do
  local record_ids = ARGV[i + 1]
  local value = record_ids ~= '' and redis.pcall('GET', key)
  if type(value) ~= 'string' or not size_of(string.byte(value)) then
    removed = removed + redis.call('DEL', key)
  else
    for offset = 1, #record_ids, 8 do
      local from, next_record = seek(value, (decode('<d', record_ids, offset)), 1)
      if from then
        if expires_of(value, from) > now then removed = removed + 1 end
        value = sub(value, 1, from - 1) .. sub(value, next_record)
      end
    end
    value = drop_summary(value)
    if value == '' then redis.call('DEL', key) else redis.call('SET', key, value, 'KEEPTTL') end
  end
end
return removed
