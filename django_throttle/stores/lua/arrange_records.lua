-- Included in decide.lua: move the record of the current charge, and those of later charges, to the places where the
-- request expects them. Convert records of another kind, and add missing ones. Afterwards `fields` matches the format
-- of the request.
--- use records
--- use convert_record
          -- Position in value of the next record, and index of its id in fields. Earlier records are in place.
          local target, field = 1, 1
          while field < place do
            local kind = fields[field] % 256
            target, field = target + size_of(kind), field + 2 + math.min(kind % 64, 4)
          end
          if value ~= '' and not size_of(string.byte(value)) then -- a foreign value
            repaired, value = repaired + 1, ''
          end
          local search_from = target
          for j = i, last_i, CHARGE do
            local record_id = request[j]
            local from, next_record, fits = seek(value, record_id, search_from) -- usually the order is the same
            if not from and next_record <= #value then -- a foreign value follows
              repaired, value = repaired + 1, sub(value, 1, next_record - 1)
            end
            if not from and search_from > target then from, next_record, fits = seek(value, record_id, target) end
            local record
            if fits then
              record = sub(value, from, next_record - 1)
            elseif from then
              record = convert_record(value, from, record_id)
            else
              record = blank(record_id, long_ago)
            end
            local rest = from and sub(value, target, from - 1) .. sub(value, next_record) or sub(value, target)
            value = sub(value, 1, target - 1) .. record .. rest
            target = target + #record
            search_from = from and from + #record or target
          end
          is_moved = true
          local new_fields = { decode(format, value) }
          for j = place, #new_fields do fields[j] = new_fields[j] end
