-- Scans some keys of a server for the sets of leases of processes.
-- KEYS: any key of that server. ARGV: cursor ("0" to begin), about how many keys, a pattern.
-- Reply: the next cursor ("0" at the end), then index and uid for each set index:<uid> that was found.
local found = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[3], 'COUNT', ARGV[2], 'TYPE', 'zset')
local reply = { found[1] }
for _, key in ipairs(found[2]) do
  local index, uid = string.match(key, '^(.*):([^:]*)$')
  if uid ~= '!' then -- else evicted leases, of any process
    reply[#reply + 1] = index
    reply[#reply + 1] = uid
  end
end
return reply
