-- A function for other scripts, which use records.lua. KEYS, ARGV, reply: theirs.
-- A value without what tells of the records that were not asked for, see decide.lua: that is no longer so.
local function unsummed(value)
  local from, after = seek(value, 193, 1)
  return from and string.sub(value, 1, from - 1) .. string.sub(value, after) or value
end
