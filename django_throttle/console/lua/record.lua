-- Add the records of a process about a rule: cells of minutes and of their hours, and the most refused idents.
-- KEYS: seen:<process> (HASH field: number of the last sending), rules (ZSET rule: minute). For each cell: minutes of an
--   hour and hours of a day (HASH time: cell). With a ranking: the ranking of an hour, and the hours of its day, which
--   keep its first idents for longer (each HASH field: ranking).
-- ARGV: field, number of this sending, TTLs of minutes, of hours and of seen in milliseconds, rule, newest minute, number
--   of cells. For each cell: minute of the hour, hour of the day, number of pairs, pairs of code and number. With a
--   ranking: its TTL in milliseconds, its field among the hours, number of idents to keep, number to keep for longer,
--   error of the counts, pairs of ident and count.
-- Numbers have seven bits in each byte, the lowest first; the last byte is below 128. A cell has the numbers of its codes
--   in order, and after a 0 the number of codes to skip. A ranking has its error, then for each ident its count, its
--   length and itself, the largest count first. Reply: 1, or 0 if the sending was added before.
local function own(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then redis.call('DEL', key) end -- a foreign value
end
own(KEYS[1], 'hash')
local before = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or nil) or 0
if before >= tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
local byte_of, char_of = string.byte, string.char
local function number_at(packed, at)
  local first = byte_of(packed, at)
  if first and first < 128 then return first, at + 1 end
  local number, scale = 0, 1
  for place = at, math.min(at + 7, #packed) do
    local byte = byte_of(packed, place)
    number, scale, at = number + byte % 128 * scale, scale * 128, place + 1
    if byte < 128 then break end
  end
  return number, at
end
local function stored(number)
  if number < 128 then return char_of(number) end
  local bytes = ''
  number = math.min(number, 2 ^ 53)
  while number > 127 do
    bytes, number = bytes .. char_of(128 + number % 128), math.floor(number / 128)
  end
  return bytes .. char_of(number)
end
local function cell_of(packed)
  local cell, codes, code, at = {}, {}, 0, 1
  while at <= #packed and code < 128 do
    local number, step = 0, 1
    number, at = number_at(packed, at)
    if number > 0 then
      cell[code], codes[#codes + 1] = number, code
    else
      step, at = number_at(packed, at)
    end
    code = code + step
  end
  return cell, codes
end
local function add(key, field, first, last, ttl)
  own(key, 'hash')
  local cell, codes = cell_of(redis.call('HGET', key, field) or '')
  for i = first, last, 2 do
    local code = tonumber(ARGV[i])
    if not cell[code] then codes[#codes + 1] = code end
    cell[code] = (cell[code] or 0) + tonumber(ARGV[i + 1])
  end
  table.sort(codes)
  local bytes, next = '', 0
  for _, code in ipairs(codes) do
    if code > next then bytes = bytes .. '\0' .. stored(code - next) end
    bytes, next = bytes .. stored(cell[code]), code + 1
  end
  redis.call('HSET', key, field, bytes)
  redis.call('PEXPIRE', key, ttl)
end
own(KEYS[2], 'zset')
redis.call('ZADD', KEYS[2], 'GT', ARGV[7], ARGV[6])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
local place = 9
for cell = 1, tonumber(ARGV[8]) do
  local first, last = place + 3, place + 2 + 2 * tonumber(ARGV[place + 2])
  add(KEYS[1 + 2 * cell], ARGV[place], first, last, ARGV[3])
  add(KEYS[2 + 2 * cell], ARGV[place + 1], first, last, ARGV[4])
  place = last + 1
end
if place > #ARGV then return 1 end
local whole, hours, field, kept = KEYS[#KEYS - 1], KEYS[#KEYS], ARGV[place + 1], tonumber(ARGV[place + 2])
own(whole, 'hash')
own(hours, 'hash')
local packed = redis.call('HGET', whole, field) or redis.call('HGET', hours, field) or ''
local error, at = number_at(packed, 1)
error = error + tonumber(ARGV[place + 4])
local counts, idents = {}, {}
local function count(ident, number)
  if not counts[ident] then idents[#idents + 1] = ident end
  counts[ident] = (counts[ident] or 0) + number
end
while at <= #packed do
  local number, length
  number, at = number_at(packed, at)
  length, at = number_at(packed, at)
  count(packed:sub(at, at + length - 1), number)
  at = at + length
end
for i = place + 5, #ARGV, 2 do count(ARGV[i], tonumber(ARGV[i + 1])) end
table.sort(idents, function(one, other) return counts[one] > counts[other] end)
local least = counts[idents[kept + 1]] or 0
local function ranking(most, error)
  local bytes = ''
  for i = 1, most do
    local number = (counts[idents[i]] or 0) - least
    if number > 0 then bytes = bytes .. stored(number) .. stored(#idents[i]) .. idents[i] end
  end
  return stored(error) .. bytes
end
error = error + least
redis.call('HSET', whole, field, ranking(kept, error))
redis.call('PEXPIRE', whole, ARGV[place])
local long = tonumber(ARGV[place + 3])
local rest = math.max(0, (counts[idents[long + 1]] or 0) - least)
redis.call('HSET', hours, field, ranking(long, error + rest))
redis.call('PEXPIRE', hours, ARGV[4])
return 1
