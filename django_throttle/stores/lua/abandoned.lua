-- Scans some keys of a server for the sets of leases of dead uids.
-- KEYS: any key of that server. ARGV: cursor ("0" to begin), about how many keys, a pattern, then the uids.
-- Reply: the next cursor ("0" at the end), then index and uid for each set index:<uid> that was found.
local wanted = {}
for i = 4, #ARGV do wanted[ARGV[i]] = true end
local found = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[3], 'COUNT', ARGV[2])
local reply = { found[1] }
for _, key in ipairs(found[2]) do
  local index, uid = string.match(key, '^(.*):([^:]*)$')
  if wanted[uid] then
    reply[#reply + 1] = index
    reply[#reply + 1] = uid
  end
end
return reply
