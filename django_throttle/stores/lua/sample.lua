-- Adds to a sample of decisions, and keeps it small: when there are too many, half of them go (see thinning.py).
-- KEYS: seen:<process> (HASH field: number of the last sending), sample of this time (LIST of a byte, the level, and
--   JSON), its level (STRING), an older sample, its level.
-- ARGV: field, number of this sending, TTL of samples and of seen in milliseconds, most entries of this sample, of the
--   older one, level of what is sent, then the entries. Reply: the level of this sample.
local function own(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then redis.call('DEL', key) end -- a foreign value
end
own(KEYS[1], 'hash')
for _, key in ipairs({KEYS[2], KEYS[4]}) do own(key, 'list') end
for _, key in ipairs({KEYS[3], KEYS[5]}) do own(key, 'string') end
local function thin(key, level_key, most, level)
  local length, highest = redis.call('LLEN', key), 31
  local before = tonumber(redis.call('GET', level_key) or nil) or 0
  if length == 0 and level <= before then return before end
  local now, entries = math.max(level, before), nil
  local function keep()
    local left = {}
    for _, entry in ipairs(entries) do
      if string.byte(entry) >= now then left[#left + 1] = entry end
    end
    entries = left
  end
  if length > most or now > before then
    entries = redis.call('LRANGE', key, 0, -1)
    keep()
    while #entries > most and now < highest do
      now = now + 1
      keep()
    end
    redis.call('DEL', key)
    for i = 1, math.min(#entries, most) do redis.call('RPUSH', key, entries[i]) end
  end
  redis.call('SET', level_key, now, 'PX', ARGV[3])
  redis.call('PEXPIRE', key, ARGV[3])
  return now
end
local level = tonumber(ARGV[7])
local before = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or nil) or 0
if before < tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  for i = 8, #ARGV do redis.call('RPUSH', KEYS[2], ARGV[i]) end
  thin(KEYS[4], KEYS[5], tonumber(ARGV[6]), 0)
end
return thin(KEYS[2], KEYS[3], tonumber(ARGV[5]), level)
