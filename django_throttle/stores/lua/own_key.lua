-- For algorithms with a key of their own. KEYS, ARGV, reply, variables: see decide.lua.
--- before
-- Milliseconds to live, rounded up so that nothing expires before it is due.
local function lifetime(time)
  time = (time < least_lifetime and least_lifetime or time) + 999
  return (time - time % 1000) / 1000
end
