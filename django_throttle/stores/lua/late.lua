-- Charges once, whatever the limits, what a process admitted by itself while this server was unavailable.
-- KEYS: one a charge, then the mark by which a second time is known; all of one slot. ARGV: now in microseconds ("" for
-- the server's clock), the mark's time to live in milliseconds, then for each charge a byte and six big-endian doubles:
-- algorithm, cost, the rule's plan (limit, a, b, c) and how long ago it was made, in microseconds.
-- Reply: the number of charges made, without those whose window is over.
-- The sections "late" of the algorithms, see decide.lua, set the text to store and for how long. One whose state is no
-- text writes, and counts `made`, by itself.
local now = tonumber(ARGV[1])
local least_lifetime = now and 3600000000 or 1000 -- keys expire by the server's clock, not by a test's
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local MAX_COUNT = 999999999999999
if not redis.call('SET', KEYS[#KEYS], '1', 'NX', 'PX', ARGV[2]) then return 0 end

local function lifetime(time)
  return math.ceil(math.max(time, least_lifetime) / 1000)
end

local place, made = 1, 0
for i = 1, #KEYS - 1 do
  local key, algorithm, cost, limit, a, b, c, age = KEYS[i]
  algorithm, cost, limit, a, b, c, age, place = struct.unpack('>Bdddddd', ARGV[3], place)
  local at = now - math.max(0, age)
  local state = algorithm < 10 and redis.pcall('GET', key)
  if type(state) ~= 'string' then state = '' end -- none, or a foreign value
  local stored_state, lasts
  if false then
--- late
  end
  if stored_state then
    redis.call('SET', key, stored_state, 'PX', lifetime(lasts))
    made = made + 1
  end
end
return made
