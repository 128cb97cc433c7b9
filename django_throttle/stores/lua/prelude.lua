-- Opens every decision script: the clock and what the fragments share.
-- KEYS: one a charge. ARGV, reply: see decide.lua, which closes the script.
-- Each fragment adds algorithms.<name>(key, at, cost, counts_denied) where ARGV[at] is the charge's
-- first argument. It writes nothing and returns remaining, retry, reset, charged_reset, charged, kept:
-- the Step of core/algorithms.py; charged and kept are texts to SET or nil. Times are microseconds.
-- A fragment whose state is not a text adds writers.<name>(key, at, cost, step), which writes the charge and
-- returns remaining and reset after it; charged is then true when it is to be called.
local now = tonumber(ARGV[1])
-- Keys expire by the server's clock, which a test's clock says nothing about: keep them for an hour then.
local least_lifetime = now and 3600000000 or 1000
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local commit = ARGV[2] == '1'
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local NEVER = -1
local MAX_COUNT = 94906265
local EXACT = 9007199254740992
local algorithms, writers = {}, {}
local repaired = 0

-- Milliseconds to live, rounded up so that nothing expires before it is due.
local function lifetime(time)
  return ceil(max(least_lifetime, time) / 1000)
end

-- A value that is not ours is removed and counted: the charge then meets an empty state.
local function repair(key)
  redis.call('DEL', key)
  repaired = repaired + 1
end

-- The text stored under key, or false.
local function read(key)
  local value = redis.pcall('GET', key)
  if type(value) == 'table' then
    repair(key)
    return false
  end
  return value
end

-- The `count` whole numbers in a text such as "12:3:4", or nil when it is anything else.
local function numbers(text, count)
  if not string.find(text, '^[%d:]+$') then return nil end
  local found, n = {}, 0
  for digits in string.gmatch(text, '%d+') do
    n = n + 1
    found[n] = tonumber(digits)
    if found[n] >= EXACT then return nil end
  end
  if n ~= count then return nil end
  return found
end
