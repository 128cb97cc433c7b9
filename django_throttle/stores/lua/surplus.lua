-- The sockets of a process that exceed a lowered limit: of those of all processes, the ones that opened last, or, for
-- rules that evict, those that opened or were active longest ago.
-- KEYS: index (SET of uids). Derived from it, with the same hash tag and so in the same slot: index:<uid> (ZSET
-- lease: opened or active at).
-- ARGV: uid, limit, 1 for the oldest, else 0. Reply: leases of sockets of that uid; none within the limit.
local index, uid, limit, sign = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1' and -1 or 1
local owners = redis.pcall('SMEMBERS', index)
local held = {}
for _, owner in ipairs(owners.err and {} or owners) do
  local found = redis.pcall('ZRANGE', index .. ':' .. owner, 0, -1, 'WITHSCORES')
  for i = 1, found.err and 0 or #found, 2 do
    held[#held + 1] = { sign * tonumber(found[i + 1]), found[i], owner == uid }
  end
end
if #held <= limit then return {} end
table.sort(held, function(a, b) return a[1] > b[1] or (a[1] == b[1] and a[2] > b[2]) end)
local reply = {}
for i = 1, #held - limit do
  if held[i][3] and string.byte(held[i][2]) == 126 then reply[#reply + 1] = held[i][2] end -- "~" begins a socket's
end
return reply
