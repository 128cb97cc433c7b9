-- Assign a run of a task to a message. Several messages may ask for the same run.
--
-- KEYS[1]  claim of the run: STRING, message that has it
-- ARGV[1]  message
-- ARGV[2]  TTL in milliseconds; "" only reads the claim
-- Reply    message that has the run; "" if none has
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'string' then return holder end
if ARGV[2] == '' then return '' end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
