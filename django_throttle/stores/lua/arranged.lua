-- Lines for other scripts. KEYS, ARGV, reply: theirs.
-- Brings the records of decide.lua's charge at hand and of those after it to where they are asked for, and makes those that
-- are missing: after that `fields` are as asked for.
--- use records
--- use converted
          local target, before = 1, 1 -- of the next record, in the value; of the records before it, which are in place
          while before < place do
            local kind = fields[before] % 256
            target, before = target + size_of(kind), before + 2 + math.min(kind % 64, 4)
          end
          if value ~= '' and not size_of(string.byte(value)) then -- a foreign value
            repaired, value = repaired + 1, ''
          end
          local ahead = target
          for j = i, last, CHARGE do
            local wanted = request[j]
            local from, after, fits = seek(value, wanted, ahead) -- most often they are in the same order
            if not from and after <= #value then -- what follows is no record
              repaired, value = repaired + 1, sub(value, 1, after - 1)
            end
            if not from and ahead > target then from, after, fits = seek(value, wanted, target) end
            local record
            if fits then
              record = sub(value, from, after - 1)
            elseif from then
              record = converted(value, from, wanted)
            else
              record = blank(wanted, long_ago)
            end
            local rest = from and sub(value, target, from - 1) .. sub(value, after) or sub(value, target)
            value = sub(value, 1, target - 1) .. record .. rest
            target = target + #record
            ahead = from and from + #record or target
          end
          is_moved = true
          local arranged = { decode(format, value) }
          for j = place, #arranged do fields[j] = arranged[j] end
