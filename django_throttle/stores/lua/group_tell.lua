-- Stores how many members a process has in groups: totals, so that doing it twice changes nothing.
-- KEYS: one a group (HASH process: "members:moment in microseconds"); one slot.
-- ARGV: now in microseconds ("" for the server's clock), process, TTL in milliseconds, then a number for each key.
-- Reply: 1.
--- use clock
local process, ttl = ARGV[2], math.max(tonumber(ARGV[3]), least_lifetime)
for i, group in ipairs(KEYS) do
  local left = redis.pcall('HDEL', group, process)
  if type(left) == 'table' then redis.call('DEL', group) end -- a foreign value
  if ARGV[3 + i] ~= '0' then
    redis.call('HSET', group, process, ARGV[3 + i] .. ':' .. string.format('%.0f', now))
    redis.call('PEXPIRE', group, ttl)
  end
end
return 1
