-- Adds what a process has recorded of a rule: numbers of minutes, of their hours, and idents most refused.
-- KEYS: seen:<process> (HASH field: number of the last sending), rules (ZSET rule: minute), then for each cell the
--   rule's minutes of an hour and hours of a day (HASH time: cell), last its ranking of an hour (STRING).
-- ARGV: field, number of this sending, TTL of minutes, of hours and of seen in milliseconds, kept counters, rule,
--   how many cells, the newest minute, TTL of rankings in milliseconds; for each cell: minute of the hour, hour of the day, how many pairs, the pairs of
--   code and number; then how much the counts of the ranking may lack, and its pairs of ident and count.
-- A cell is a MessagePack map of code: number, a ranking one of ident: count, with "" for what counts may lack. Reply: 1, or 0 where it was added before.
local try = pcall
local function own(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then redis.call('DEL', key) end -- a foreign value
end
own(KEYS[1], 'hash')
local before = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or nil) or 0
if before >= tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
local function unpacked(packed)
  if not packed then return {} end
  local is_read, found = try(cmsgpack.unpack, packed)
  return is_read and type(found) == 'table' and found or {}
end
local function add(key, field, first, last, ttl)
  own(key, 'hash')
  local cell = unpacked(redis.call('HGET', key, field))
  for i = first, last, 2 do
    local code = tonumber(ARGV[i])
    cell[code] = (tonumber(cell[code]) or 0) + tonumber(ARGV[i + 1])
  end
  redis.call('HSET', key, field, cmsgpack.pack(cell))
  redis.call('PEXPIRE', key, ttl)
end
own(KEYS[2], 'zset')
redis.call('ZADD', KEYS[2], 'GT', ARGV[9], ARGV[7])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
local place = 11
for cell = 1, tonumber(ARGV[8]) do
  local first, last = place + 3, place + 2 + 2 * tonumber(ARGV[place + 2])
  add(KEYS[1 + 2 * cell], ARGV[place], first, last, ARGV[3])
  add(KEYS[2 + 2 * cell], ARGV[place + 1], first, last, ARGV[4])
  place = last + 1
end
if place < #ARGV then
  local key, kept = KEYS[#KEYS], tonumber(ARGV[6])
  own(key, 'string')
  local counts = unpacked(redis.call('GET', key))
  local error = (tonumber(counts['']) or 0) + tonumber(ARGV[place])
  counts[''] = nil
  for i = place + 1, #ARGV, 2 do
    counts[ARGV[i]] = (tonumber(counts[ARGV[i]]) or 0) + tonumber(ARGV[i + 1])
  end
  local numbers = {}
  for _, number in pairs(counts) do numbers[#numbers + 1] = number end
  if #numbers > kept then
    table.sort(numbers, function(one, other) return one > other end)
    local least, left = numbers[kept + 1], {}
    for ident, number in pairs(counts) do
      if number > least then left[ident] = number - least end
    end
    counts, error = left, error + least
  end
  counts[''] = error
  redis.call('SET', key, cmsgpack.pack(counts), 'PX', ARGV[10])
end
return 1
