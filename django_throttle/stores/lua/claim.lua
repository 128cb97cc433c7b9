-- Says which of several messages for one run has it, or gives it to this one.
-- KEYS[1] the run. ARGV[1] the message, ARGV[2] milliseconds to live, "" to ask. Reply: the message that has it, or "".
local found = redis.pcall('GET', KEYS[1])
if type(found) == 'string' then return found end
if ARGV[2] == '' then return '' end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
