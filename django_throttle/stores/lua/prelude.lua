-- Opens every decision script: the clock, and what all charges share.
-- KEYS: one a charge. ARGV: now in microseconds ("" for the server's clock), then the calls, each decided as one:
-- a byte of flags (1 commit, 2 with a lease), two bytes with the number of charges, and for each charge two bytes
-- and five big-endian doubles: algorithm, flags (1 counts denied, 2 shadow), cost and the rule's plan: limit, a,
-- b, c. Then for each call with a lease: uid of the caller, lease, the lease's time to live in milliseconds.
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
local NEVER, MAX_COUNT, EXACT = -1, 999999999999999, 9007199254740992
local blob = ARGV[2]
local repaired, place, charges, told, reply = 0, 1, 0, 1, {}
local uid, lease, ttl
local own = 3 -- where in ARGV the next call with a lease has its own arguments

-- Milliseconds to live, rounded up so that nothing expires before it is due.
local function lifetime(time)
  time = (time < least_lifetime and least_lifetime or time) + 999
  return (time - time % 1000) / 1000
end
