-- Gives a slot of a full rule to a new socket; the sockets that opened, or were last active, longest ago lose theirs.
-- KEYS: index (SET of uids). Derived from it, with the same hash tag and so in the same slot: index:<uid> (ZSET
-- lease: opened or active at), index:! (ZSET lease: evicted at; see register.lua), index:<lease> (there when the new
-- socket has withdrawn; see list_evicted.lua).
-- ARGV: now in microseconds ("" for the server's clock), uid, lease, TTL in milliseconds, limit.
-- Reply: 1 when the new socket has its slot, else 0; then uid and lease of each that has lost its own.
local index, uid, lease, ttl, limit = KEYS[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local MOST, SOME, TILDE, REMEMBERED = 100, 50, 126, 1000 -- 126 is "~", which begins a socket's lease
--- use clock
local gone = index .. ':!'
if redis.call('EXISTS', index .. ':' .. lease) == 1 then return { 0 } end -- no process would close what it evicts
local owners = redis.pcall('SMEMBERS', index)
if owners.err then -- a foreign value
  redis.call('DEL', index)
  owners = {}
end
local held = 0
for _, owner in ipairs(owners) do
  local found = redis.pcall('ZCARD', index .. ':' .. owner)
  held = held + (type(found) == 'number' and found or 0)
end
if type(redis.pcall('ZSCORE', index .. ':' .. uid, lease)) == 'string' then return { 1 } end -- asked twice

redis.call('PEXPIRE', index, ttl) -- needs no memory: after it a full Redis accepts the others

-- The socket of this process to evict first.
local function first(owner)
  for from = 0, held, SOME do
    local found = redis.pcall('ZRANGE', index .. ':' .. owner, from, from + SOME - 1, 'WITHSCORES')
    for i = 1, #found, 2 do
      if string.byte(found[i]) == TILDE then return found[i], tonumber(found[i + 1]) end
    end
    if #found < 2 * SOME then return end
  end
end

local reply = { 0 }
while held >= limit and #reply < 2 * MOST do
  local whose, which, since
  for _, owner in ipairs(owners) do
    local found, at = first(owner)
    if found and (not since or at < since) then whose, which, since = owner, found, at end
  end
  if not which then break end
  redis.call('ZREM', index .. ':' .. whose, which)
  if redis.call('EXISTS', index .. ':' .. whose) == 0 then redis.call('SREM', index, whose) end
  redis.call('ZADD', gone, string.format('%.0f', now), which)
  held = held - 1
  reply[#reply + 1] = whose
  reply[#reply + 1] = which
end
if #reply > 1 then
  redis.call('ZREMRANGEBYRANK', gone, 0, -REMEMBERED - 1)
  redis.call('PEXPIRE', gone, ttl)
end
if held < limit then
  redis.call('SADD', index, uid)
  redis.call('ZADD', index .. ':' .. uid, 'NX', string.format('%.0f', now), lease)
  redis.call('PEXPIRE', index, ttl)
  redis.call('PEXPIRE', index .. ':' .. uid, ttl)
  reply[1] = 1
end
return reply
