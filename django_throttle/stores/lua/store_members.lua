-- Store how many members a process has in groups. These are totals, so a repeated call changes nothing.
--
-- KEYS        per group: HASH process -> "members:time in microseconds"; all in one slot
-- ARGV[1]     current time in microseconds; "" for the server's clock
-- ARGV[2]     process
-- ARGV[3]     TTL in milliseconds
-- ARGV[4...]  per group: number of members
-- Reply       1
--- use clock
local process, ttl = ARGV[2], math.max(tonumber(ARGV[3]), least_lifetime)
for i, group in ipairs(KEYS) do
  local removed = redis.pcall('HDEL', group, process)
  if type(removed) == 'table' then redis.call('DEL', group) end -- a foreign value
  if ARGV[3 + i] ~= '0' then
    redis.call('HSET', group, process, ARGV[3 + i] .. ':' .. string.format('%.0f', now))
    redis.call('PEXPIRE', group, ttl)
  end
end
return 1
