-- Takes the first of those that wait for a slot, see enlist.lua; the reply is what it needs to be called, if any waits.
local waiting = KEYS[1] .. ':>'
while true do
  local first = redis.pcall('ZRANGE', waiting, 0, 0)
  local name = not first.err and first[1]
  if not name then return false end
  redis.call('ZREM', waiting, name)
  local found = redis.pcall('GET', waiting .. ':' .. name)
  redis.call('DEL', waiting .. ':' .. name)
  if type(found) == 'string' then return found end
end
