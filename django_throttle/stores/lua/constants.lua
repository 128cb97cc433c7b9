-- Included in other scripts: constants.
--   NEVER      retry of a cost above the limit
--   MAX_LIMIT  highest limit
--   EXACT      2^53; doubles below it are exact
--   MAX_SMALL  highest count in a small record, see records.lua
local NEVER, MAX_LIMIT, EXACT, MAX_SMALL = -1, 999999999999999, 9007199254740992, 4294967295
