-- Before the loop: how many leases an index holds, and whether the caller's is among them.
-- KEYS, ARGV, reply: see prelude.lua and concurrency.lua.
local function count_leases(key)
  local held, mine = 0, false
  local owners = redis.pcall('SMEMBERS', key)
  if owners.err then
    redis.call('DEL', key)
    repaired, owners = repaired + 1, {}
  end
  for _, owner in ipairs(owners) do
    local leases = redis.pcall('ZCARD', key .. ':' .. owner)
    if type(leases) ~= 'number' then -- not a process' leases: not ours
      redis.call('DEL', key .. ':' .. owner)
      repaired, leases = repaired + 1, 0
    end
    held = held + leases
    mine = mine or (owner == uid and redis.call('ZSCORE', key .. ':' .. uid, lease))
  end
  return held, mine
end
