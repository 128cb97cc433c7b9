-- A calendar that does not hold the time has to be sent again, and nothing is decided. The rest is in fixed_window.lua.
-- KEYS, ARGV: see decide.lua. Reply then: two doubles, -1 and the time in microseconds.
--- before
for call_at = 1, #blob, CALL_BYTES do
  for _, bounds_at in ipairs({ CALENDARS }) do
    local start, _, finish = decode('<ddd', blob, call_at + bounds_at)
    if now < start or now >= finish then return encode('<dd', -1, now) end
  end
end
