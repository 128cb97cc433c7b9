-- Update an exponentially weighted mean. A new value has a weight of one eighth.
--
-- KEYS[1]  mean: STRING, decimal number
-- ARGV[1]  value
-- ARGV[2]  TTL in milliseconds
-- Reply    mean, rounded up
local value = tonumber(ARGV[1])
local stored = redis.pcall('GET', KEYS[1])
local mean = type(stored) == 'string' and tonumber(stored)
mean = mean and mean == mean and math.abs(mean) < 1e15 and mean + (value - mean) / 8 or value
redis.call('SET', KEYS[1], string.format('%.3f', mean), 'PX', ARGV[2])
return math.ceil(mean)
