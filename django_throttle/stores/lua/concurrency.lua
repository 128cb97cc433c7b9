-- Fragment: at most `limit` leases at once, summed over the processes that hold them.
-- KEYS[i]: the index, a set of process uids. Each process' leases are a sorted set, lease -> taken at
-- (microseconds), under KEYS[i]:<uid>: derived here, with the same hash tag and so in the same slot.
-- ARGV[at+3..4]: limit, when to ask again in microseconds. The last three of ARGV: uid and lease of the
-- caller, time to live in milliseconds. Reply: see prelude.lua.
local uid, lease, ttl = ARGV[#ARGV - 2], ARGV[#ARGV - 1], ARGV[#ARGV]

algorithms.concurrency = function(key, at, cost)
  local limit, ask_again = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local held, mine = 0, false
  local owners = redis.pcall('SMEMBERS', key)
  if owners.err then
    repair(key)
    owners = {}
  end
  for _, owner in ipairs(owners) do
    held = held + redis.call('ZCARD', key .. ':' .. owner)
    mine = mine or (owner == uid and redis.call('ZSCORE', key .. ':' .. uid, lease))
  end
  local wanted = mine and 0 or cost
  local retry = held + wanted <= limit and 0 or ask_again
  return max(0, limit - held), retry, held > 0 and ask_again or 0, ask_again, true
end

writers.concurrency = function(key, at)
  redis.call('SADD', key, uid)
  redis.call('ZADD', key .. ':' .. uid, 'NX', string.format('%.0f', now), lease)
  redis.call('PEXPIRE', key, ttl)
  redis.call('PEXPIRE', key .. ':' .. uid, ttl)
  local remaining, _, reset = algorithms.concurrency(key, at, 0)
  return remaining, reset
end
