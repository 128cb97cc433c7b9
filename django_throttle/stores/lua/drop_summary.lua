-- Included in other scripts, which also include records.lua.
-- Return a value without its summary record, see tail.lua, which is invalid after a record of the value has changed.
local function drop_summary(value)
  local from, next_record = seek(value, 193, 1)
  return from and string.sub(value, 1, from - 1) .. string.sub(value, next_record) or value
end
