-- Scan keys of a server for sets of leases.
--
-- KEYS[1]  any key on the server
-- ARGV[1]  cursor; "0" begins
-- ARGV[2]  approximate number of keys to scan
-- ARGV[3]  pattern
-- Reply    next cursor, "0" at the end; then index and uid of each set index:<uid>
local scanned = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[3], 'COUNT', ARGV[2], 'TYPE', 'zset')
local reply = { scanned[1] }
for _, key in ipairs(scanned[2]) do
  local index, uid = string.match(key, '^(.*):([^:]*)$')
  if uid ~= '!' then -- "!" has evicted leases of all processes
    reply[#reply + 1] = index
    reply[#reply + 1] = uid
  end
end
return reply
