-- Included in decide.lua: convert microseconds to a TTL in milliseconds, rounded up so that no key expires early.
local function lifetime(time)
  time = (time < least_lifetime and least_lifetime or time) + 999
  return (time - time % 1000) / 1000
end
