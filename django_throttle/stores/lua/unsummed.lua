-- A function for other scripts. KEYS, ARGV, reply: theirs.
-- A value without what tells of the records that were not asked for, see decide.lua: that is no longer so.
local function unsummed(value)
  local from, after = seek(value, '\0\0\0\0\0\0\7\0', 2)
  return from and sub(value, 1, from - 1) .. sub(value, after) or value
end
