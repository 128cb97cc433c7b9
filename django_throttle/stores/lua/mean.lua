-- An exponentially weighted mean: each new value has an eighth of the weight.
-- KEYS: the mean. ARGV: the value, and the milliseconds for which the mean is kept. Reply: the mean, rounded up.
local value = tonumber(ARGV[1])
local before = redis.pcall('GET', KEYS[1])
local mean = type(before) == 'string' and tonumber(before)
mean = mean and mean == mean and math.abs(mean) < 1e15 and mean + (value - mean) / 8 or value
redis.call('SET', KEYS[1], string.format('%.3f', mean), 'PX', ARGV[2])
return math.ceil(mean)
