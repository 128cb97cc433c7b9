-- Give a slot of a full rule to a new socket. The sockets that opened, or were active, longest ago lose their slots.
--
-- KEYS[1]  lease index: SET of uids. Derived from it, in the same slot:
--          index:<uid>     leases of a process: ZSET lease -> time of opening or last activity
--          index:!         evicted leases: ZSET lease -> time of eviction; see register.lua
--          index:<lease>   exists if the new socket has withdrawn; see list_evicted.lua
-- ARGV[1]  current time in microseconds; "" for the server's clock
-- ARGV[2]  uid
-- ARGV[3]  lease of the new socket
-- ARGV[4]  TTL in milliseconds
-- ARGV[5]  limit
-- Reply    1 if the new socket has a slot, otherwise 0; then uid and lease of each evicted socket
local index, uid, lease, ttl, limit = KEYS[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local MAX_EVICTIONS, PAGE, MAX_EVICTED = 100, 50, 1000
local TILDE = 126 -- "~" begins a socket's lease
--- use clock
local evicted = index .. ':!'
if redis.call('EXISTS', index .. ':' .. lease) == 1 then return { 0 } end -- no process would close the evicted sockets
local owners = redis.pcall('SMEMBERS', index)
if owners.err then -- a foreign value
  redis.call('DEL', index)
  owners = {}
end
local lease_count = 0
for _, owner in ipairs(owners) do
  local count = redis.pcall('ZCARD', index .. ':' .. owner)
  lease_count = lease_count + (type(count) == 'number' and count or 0)
end
if type(redis.pcall('ZSCORE', index .. ':' .. uid, lease)) == 'string' then return { 1 } end -- a repeated call

redis.call('PEXPIRE', index, ttl) -- needs no memory, so a full Redis accepts the later writes

-- Return the lease and time of the process' socket to evict first.
local function oldest_socket(owner)
  for from = 0, lease_count, PAGE do
    local leases = redis.pcall('ZRANGE', index .. ':' .. owner, from, from + PAGE - 1, 'WITHSCORES')
    for i = 1, #leases, 2 do
      if string.byte(leases[i]) == TILDE then return leases[i], tonumber(leases[i + 1]) end
    end
    if #leases < 2 * PAGE then return end
  end
end

local reply = { 0 }
while lease_count >= limit and #reply < 2 * MAX_EVICTIONS do
  local victim_owner, victim, victim_time
  for _, owner in ipairs(owners) do
    local candidate, time = oldest_socket(owner)
    if candidate and (not victim_time or time < victim_time) then
      victim_owner, victim, victim_time = owner, candidate, time
    end
  end
  if not victim then break end
  redis.call('ZREM', index .. ':' .. victim_owner, victim)
  if redis.call('EXISTS', index .. ':' .. victim_owner) == 0 then redis.call('SREM', index, victim_owner) end
  redis.call('ZADD', evicted, string.format('%.0f', now), victim)
  lease_count = lease_count - 1
  reply[#reply + 1] = victim_owner
  reply[#reply + 1] = victim
end
if #reply > 1 then
  redis.call('ZREMRANGEBYRANK', evicted, 0, -MAX_EVICTED - 1)
  redis.call('PEXPIRE', evicted, ttl)
end
if lease_count < limit then
  redis.call('SADD', index, uid)
  redis.call('ZADD', index .. ':' .. uid, 'NX', string.format('%.0f', now), lease)
  redis.call('PEXPIRE', index, ttl)
  redis.call('PEXPIRE', index .. ':' .. uid, ttl)
  reply[1] = 1
end
return reply
