-- Add to a sample of decisions, and remove its highest ranks if it is too large (see bounded_sample.py).
-- KEYS: seen:<process> (HASH field: number of the last sending), sample of a slot (LIST of a rank in four bytes and
--   JSON), its state (STRING of its bound and its full ranks), an older sample, its state.
-- ARGV: field, number of this sending, TTLs of samples and of seen in milliseconds, maximal entries of this sample and of
--   the older sample, state of the sent entries, then the entries. Reply: the state of this sample.
local function own(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then redis.call('DEL', key) end -- a foreign value
end
own(KEYS[1], 'hash')
for _, key in ipairs({KEYS[2], KEYS[4]}) do own(key, 'list') end
for _, key in ipairs({KEYS[3], KEYS[5]}) do own(key, 'string') end
local full, bound = {}, 2 ^ 32
local function heed(state)
  local numbers = string.gmatch(state or '', '%d+')
  bound = math.min(bound, tonumber(numbers() or nil) or bound)
  for rank in numbers do full[tonumber(rank)] = true end
end
local function state()
  local numbers = {string.format('%d', bound)}
  for rank in pairs(full) do numbers[#numbers + 1] = string.format('%d', rank) end
  return table.concat(numbers, ' ')
end
local function rank_of(entry)
  local a, b, c, d = string.byte(entry, 1, 4)
  return d and ((a * 256 + b) * 256 + c) * 256 + d or bound
end
local function thin(key, most)
  if redis.call('LLEN', key) <= most * 4 / 3 then return end
  local each, left, counts, ranks, entries = math.max(1, math.floor(most * 3 / 4)), 0, {}, {}, {}
  for _, entry in ipairs(redis.call('LRANGE', key, 0, -1)) do
    local rank = rank_of(entry)
    if rank < bound then
      if not counts[rank] then counts[rank], ranks[#ranks + 1] = 0, rank end
      if counts[rank] < each then
        counts[rank], left, entries[#entries + 1] = counts[rank] + 1, left + 1, entry
      end
      if counts[rank] == each then full[rank] = true end
    end
  end
  table.sort(ranks, function(one, other) return one > other end)
  for _, rank in ipairs(ranks) do
    if left <= most then break end
    left, bound = left - counts[rank], rank
  end
  redis.call('DEL', key)
  for _, entry in ipairs(entries) do
    if rank_of(entry) < bound then redis.call('RPUSH', key, entry) end
  end
end
local function store(key, state_key)
  redis.call('SET', state_key, state(), 'PX', ARGV[3])
  redis.call('PEXPIRE', key, ARGV[3])
end
local before = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or nil) or 0
local is_new = before < tonumber(ARGV[2])
if is_new then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  if redis.call('LLEN', KEYS[4]) > tonumber(ARGV[6]) * 4 / 3 then
    heed(redis.call('GET', KEYS[5]))
    thin(KEYS[4], tonumber(ARGV[6]))
    store(KEYS[4], KEYS[5])
    full, bound = {}, 2 ^ 32
  end
end
heed(redis.call('GET', KEYS[3]))
if is_new then
  for i = 8, #ARGV do
    local rank = rank_of(ARGV[i])
    if rank < bound and not full[rank] then redis.call('RPUSH', KEYS[2], ARGV[i]) end
  end
  heed(ARGV[7])
  thin(KEYS[2], tonumber(ARGV[5]))
end
store(KEYS[2], KEYS[3])
return state()
