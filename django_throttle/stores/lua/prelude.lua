-- Opens every decision script: the clock, and what all charges share.
-- KEYS: one a charge. ARGV: now in microseconds ("" for the server's clock), then the calls, each decided as one:
-- a byte that is 1 to commit, a byte with the number of charges, and for each charge two bytes and five
-- big-endian doubles: algorithm, flags (1 counts denied, 2 shadow), cost and the rule's plan: limit, a, b, c.
-- With concurrency, also uid and lease of the caller and the leases' time to live in milliseconds.
-- Reply: see end.lua, which closes the script.
-- A fragment is a branch of the loop over the charges: it reads key, cost, limit, a, b, c and counts_denied, writes nothing, and sets the
-- Step of core/algorithms.py: remaining, retry, reset, charged_reset, charged and kept; charged and kept are
-- texts to SET, or charged is true when <algorithm>.write.lua stores it. Times are microseconds.
local now = tonumber(ARGV[1])
-- Keys expire by the server's clock, which a test's clock says nothing about: keep them for an hour then.
local least_lifetime = now and 3600000000 or 1000
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local NEVER, MAX_COUNT, EXACT = -1, 94906265, 9007199254740992
local blob = ARGV[2]
local repaired, place, charges, told, reply = 0, 1, 0, 1, {}

-- Milliseconds to live, rounded up so that nothing expires before it is due.
local function lifetime(time)
  return math.ceil(math.max(least_lifetime, time) / 1000)
end
