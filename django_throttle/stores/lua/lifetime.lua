-- A function for other scripts. KEYS, ARGV, reply: theirs.
-- Milliseconds to live, rounded up so that nothing expires before it is due.
local function lifetime(time)
  time = (time < least_lifetime and least_lifetime or time) + 999
  return (time - time % 1000) / 1000
end
