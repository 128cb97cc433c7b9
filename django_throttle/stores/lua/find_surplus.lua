-- Find the sockets of a process that exceed a lowered limit. Over all processes, the newest sockets exceed it; under
-- rules that evict, the oldest or those inactive for longest.
--
-- KEYS[1]  lease index: SET of uids. Derived from it, in the same slot:
--          index:<uid>   leases of a process: ZSET lease -> time of opening or last activity
-- ARGV[1]  uid
-- ARGV[2]  limit
-- ARGV[3]  "1" for the oldest, otherwise the newest
-- Reply    leases of this uid's sockets
local index, uid, limit, sign = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1' and -1 or 1
local owners = redis.pcall('SMEMBERS', index)
local held_leases = {}
for _, owner in ipairs(owners.err and {} or owners) do
  local leases = redis.pcall('ZRANGE', index .. ':' .. owner, 0, -1, 'WITHSCORES')
  for i = 1, leases.err and 0 or #leases, 2 do
    held_leases[#held_leases + 1] = { sign * tonumber(leases[i + 1]), leases[i], owner == uid }
  end
end
if #held_leases <= limit then return {} end
table.sort(held_leases, function(a, b) return a[1] > b[1] or (a[1] == b[1] and a[2] > b[2]) end)
local reply = {}
for i = 1, #held_leases - limit do
  local lease, is_own = held_leases[i][2], held_leases[i][3]
  if is_own and string.byte(lease) == 126 then reply[#reply + 1] = lease end -- "~" begins a socket's lease
end
return reply
