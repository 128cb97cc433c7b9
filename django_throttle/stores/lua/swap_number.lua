-- Writes a number on a server: a process that later reads a lower one, or none, knows that the server lost writes.
-- KEYS: the number's. ARGV: TTL in milliseconds, the number.
-- Reply: the number before, the server's run id, the number of keys that it has evicted; "" for each that is not known;
-- then 1 when it evicts some soon, as its memory is nearly full, else 0.
local found = redis.pcall('GET', KEYS[1])
redis.call('PEXPIRE', KEYS[1], ARGV[1]) -- needs no memory: after it a full Redis accepts the next
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[1])
local function info(section, pattern)
  local text = redis.pcall('INFO', section) -- an error: it is forbidden
  return type(text) == 'string' and string.match(text, pattern) or ''
end
local evicted, is_tight = info('stats', 'evicted_keys:(%d+)'), 0
local limit = tonumber(info('memory', 'maxmemory:(%d+)')) or 0
if limit > 0 and tonumber(info('memory', 'used_memory:(%d+)')) > 0.8 * limit then
  is_tight = info('memory', 'maxmemory_policy:(%S+)') == 'noeviction' and 0 or 1
end
return { type(found) == 'string' and found or '', info('server', 'run_id:(%w+)'), evicted, is_tight }
