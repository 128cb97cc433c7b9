-- Replace a number on a server. A process that later reads a lower number, or none, knows that the server lost writes.
--
-- KEYS[1]  number: STRING
-- ARGV[1]  TTL in milliseconds
-- ARGV[2]  new number
-- Reply    previous number, run id of the server, number of evicted keys; each "" if unknown
--          1 if the server's memory is nearly full and it is going to evict keys, otherwise 0
local stored = redis.pcall('GET', KEYS[1])
redis.call('PEXPIRE', KEYS[1], ARGV[1]) -- needs no memory, so a full Redis accepts the next write
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[1])
local function info(section, pattern)
  local text = redis.pcall('INFO', section) -- an error reply: the user may not call it
  return type(text) == 'string' and string.match(text, pattern) or ''
end
local evicted, evicts_soon = info('stats', 'evicted_keys:(%d+)'), 0
local limit = tonumber(info('memory', 'maxmemory:(%d+)')) or 0
if limit > 0 and tonumber(info('memory', 'used_memory:(%d+)')) > 0.8 * limit then
  evicts_soon = info('memory', 'maxmemory_policy:(%S+)') == 'noeviction' and 0 or 1
end
return { type(stored) == 'string' and stored or '', info('server', 'run_id:(%w+)'), evicted, evicts_soon }
