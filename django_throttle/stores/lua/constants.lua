-- Variables for other scripts. KEYS, ARGV, reply: theirs.
-- NEVER answers a cost above the limit. Limits are MAX_LIMIT at most, and doubles exact below EXACT. A count in a small
-- record, see records.lua, is MAX_SMALL at most.
local NEVER, MAX_LIMIT, EXACT, MAX_SMALL = -1, 999999999999999, 9007199254740992, 4294967295
