-- A toy for tests/core/test_new_algorithm.py: a call that is charged takes all there is, for `window`.
-- A record says only when that is over. Variables: see decide.lua, refund.lua and late.lua.
--- decide
      local window, left = a, math.max(0, math.min(expires - now, a))
      remaining, reset = left > 0 and 0 or limit, left
      if cost > limit then
        retry = NEVER
      elseif cost > 0 and left > 0 then
        retry = left
      elseif added > 0 then
        expires = now + window
      end
--- refund
    goes_back = expires == since + a
    if goes_back then expires = 0 end
--- late
    expires = math.max(expires, at + a)
    is_made = expires > now
