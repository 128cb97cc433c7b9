-- Store a process' list of its sockets, for the process that requested it.
--
-- KEYS[1]  sockets:<uid>:<search>: STRING, JSON
-- ARGV[1]  TTL in milliseconds
-- ARGV[2]  list
-- Reply    1
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[1])
return 1
