-- Take the first run that waits for a slot, see enlist.lua.
--
-- KEYS[1]  lease index; the keys of the queue are derived from it, see enlist.lua
-- ARGV     none
-- Reply    payload of the run; nil if no run waits
local waiting = KEYS[1] .. ':>'
while true do
  local names = redis.pcall('ZRANGE', waiting, 0, 0)
  local name = not names.err and names[1]
  if not name then return false end
  redis.call('ZREM', waiting, name)
  local entry = redis.pcall('GET', waiting .. ':' .. name)
  redis.call('DEL', waiting .. ':' .. name)
  if type(entry) == 'string' then return entry end
end
