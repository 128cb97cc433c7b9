-- Leaves a mark on a server: who finds an older one there later on, or none, knows that it has lost what it was told.
-- KEYS: mark (a whole number). ARGV: TTL in milliseconds, the mark.
-- Reply: the mark before, the server's run id, the number of keys that it has evicted; "" for each that is not known.
local found = redis.pcall('GET', KEYS[1])
redis.call('PEXPIRE', KEYS[1], ARGV[1]) -- the first write needs no memory: a full Redis then accepts the next
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[1])
local function told(section, pattern)
  local text = redis.pcall('INFO', section) -- an error: it is forbidden
  return type(text) == 'string' and string.match(text, pattern) or ''
end
return {
  type(found) == 'string' and found or '', told('server', 'run_id:(%w+)'), told('stats', 'evicted_keys:(%d+)')
}
