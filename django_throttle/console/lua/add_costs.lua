-- Add to the costs of each route of a site in four hours.
-- KEYS: costs:<period> (HASH measure:bucket:scope: number). ARGV: TTL in milliseconds, then fields and numbers in turns.
-- Reply: 1.
if type(redis.pcall('HGET', KEYS[1], '')) == 'table' then redis.call('DEL', KEYS[1]) end -- a foreign value
for i = 2, #ARGV, 2 do
  local before = tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or nil) or 0
  redis.call('HSET', KEYS[1], ARGV[i], string.format('%.0f', before + ARGV[i + 1]))
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
