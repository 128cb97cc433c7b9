-- A toy for tests/core/test_new_algorithm.py: a call that is charged takes all there is, for `window`.
-- KEYS[i]: until when, in microseconds. ARGV, reply: see decide.lua, refund.lua and late.lua.
--- decide
  elseif algorithm == 6 then
    local window, left = a, 0
    if state then left = math.max(0, math.min(tonumber(state) - now, window)) end
    remaining, reset, charged_reset = left > 0 and 0 or limit, left, window
    if cost > limit then
      retry = NEVER
    elseif cost > 0 and left > 0 then
      retry = left
    else
      charged_state = string.format('%d', now + window)
    end
--- refund
  elseif algorithm == 6 then
    if tonumber(state) == since + a then left = '' end
--- late
  elseif algorithm == 6 then
    local finish = math.max(tonumber(state) or 0, at + a)
    if finish > now then stored_state, lasts = string.format('%d', finish), finish - now end
