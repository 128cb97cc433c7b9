-- Return the list of sockets that a process has stored, see store_sockets.lua.
--
-- KEYS[1]  sockets:<uid>:<search>: STRING, JSON
-- ARGV     none
-- Reply    list; "" if there is none
local sockets = redis.pcall('GET', KEYS[1])
return type(sockets) == 'string' and sockets or ''
