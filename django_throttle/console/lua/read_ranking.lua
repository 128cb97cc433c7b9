-- Return the idents that a rule refused most in an hour (see record.lua).
-- KEYS: ranking (HASH field: ranking), hours of the day (HASH with the first idents of the ranking). ARGV: field.
-- Reply: the ranking, or "".
local whole, few = redis.pcall('HGET', KEYS[1], ARGV[1]), redis.pcall('HGET', KEYS[2], ARGV[1])
return type(whole) == 'string' and whole or type(few) == 'string' and few or ''
