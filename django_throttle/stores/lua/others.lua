-- Lines for other scripts. KEYS, ARGV, reply: theirs.
-- Looks at decide.lua's records that were not asked for, which begin at `at`: `latest` is when the last of them runs out,
-- and `others` their text where it is to change, as some have run out.
-- SUMMARY is the kind of a record that tells of those that follow it. It is a large one of the id 0, which runs out when
-- the last of them does, and has in seven bytes, and one that is not read, when the first one does.
          local SUMMARY, size = 193, #value
          local head, soonest
          if size - at >= 20 then head, latest, soonest = decode('<I6I7I7', value, at) end
          if head ~= SUMMARY or soonest <= now then
--- use records
            local from = at
            latest, soonest, others = 0, EXACT, ''
            while at <= size do
              local after, first_expires = at + (size_of(string.byte(value, at)) or EXACT), nil
              if after > size + 1 then -- no record
                size = at - 1
                break
              end
              local expires = expires_of(value, at)
              head = decode('<I6', value, at)
              if head == SUMMARY then first_expires = decode('<I7', value, at + 13) end
              if head == SUMMARY or expires <= now then
                others, from = others .. sub(value, from, at - 1), after
              end
              if expires > now and (head ~= SUMMARY or first_expires > now) then
                if expires > latest then latest = expires end
                if not first_expires then first_expires = expires end
                if first_expires < soonest then soonest = first_expires end
                if head == SUMMARY then break end -- the rest is as it says
              end
              at = after
            end
            others = others .. sub(value, from, size)
            if others ~= '' then others = encode('<I6I7I7B', SUMMARY, latest, soonest, 0) .. others end
          end
