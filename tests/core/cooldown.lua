-- A toy for tests/core/test_new_algorithm.py: a call that is charged takes all there is, for `window`.
-- A record says only when that is over. Variables: see decide.lua, refund.lua and backfill.lua.
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
    is_refunded = expires == charged_at + a
    if is_refunded then expires = 0 end
--- backfill
    expires = math.max(expires, charged_at + a)
    is_charged = expires > now
