        -- Function included by other scripts, with their KEYS, ARGV and reply.
        -- Return floor(x * y / z) and the remainder, for quotients up to x or y. Doubles have 53 bits: a longer product
        -- is held in two, the second of which has the bits that the first has lost (T. J. Dekker, "A floating-point
        -- technique for extending the available precision", 1971).
        local function divided(x, y, z)
          if x * y < EXACT then return math.floor(x * y / z), x * y % z end
          local function product(u, v)
            local high, u1, v1 = u * v, u * 134217729, v * 134217729
            u1, v1 = u1 - (u1 - u), v1 - (v1 - v)
            local u2, v2 = u - u1, v - v1
            return high, u1 * v1 - high + u1 * v2 + u2 * v1 + u2 * v2
          end
          local high, low = product(x, y)
          local quotient = math.floor(high / z)
          local taken, lost = product(quotient, z)
          local left = high - taken + (low - lost)
          while left < 0 do quotient, left = quotient - 1, left + z end
          while left >= z do quotient, left = quotient + 1, left - z end
          return quotient, left
        end
