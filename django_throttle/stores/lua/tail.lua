-- Included in decide.lua: find when the records of a value expire that the call did not request, its tail.
--
-- Reads value and tail_start, where the tail begins. Sets tail_expiry, the latest expiry in the tail; and tail, its new
-- bytes, if they change because records have expired.
--
-- A summary record begins the tail, so that most calls do not read the records behind it. It is a large record:
--
--   kind       1 byte   193
--   rule id    5 bytes  0
--   latest     7 bytes  latest expiry of the records behind it, in microseconds
--   earliest   7 bytes  earliest expiry of these records; from this time on the summary is invalid
--   unused     1 byte   0
          local SUMMARY, value_end = 193, #value
          local record_id, earliest_expiry
          if value_end - tail_start >= 20 then
            record_id, tail_expiry, earliest_expiry = decode('<I6I7I7', value, tail_start)
          end
          if record_id ~= SUMMARY or earliest_expiry <= now then
--- use records
            local position, kept_from = tail_start, tail_start
            tail_expiry, earliest_expiry, tail = 0, EXACT, ''
            while position <= value_end do
              local next_record, record_earliest = position + (size_of(string.byte(value, position)) or EXACT), nil
              if next_record > value_end + 1 then -- a foreign value
                value_end = position - 1
                break
              end
              local expires = expires_of(value, position)
              record_id = decode('<I6', value, position)
              if record_id == SUMMARY then record_earliest = decode('<I7', value, position + 13) end
              if record_id == SUMMARY or expires <= now then
                tail, kept_from = tail .. sub(value, kept_from, position - 1), next_record
              end
              if expires > now and (record_id ~= SUMMARY or record_earliest > now) then
                if expires > tail_expiry then tail_expiry = expires end
                if not record_earliest then record_earliest = expires end
                if record_earliest < earliest_expiry then earliest_expiry = record_earliest end
                if record_id == SUMMARY then break end -- it describes all records behind it
              end
              position = next_record
            end
            tail = tail .. sub(value, kept_from, value_end)
            if tail ~= '' then tail = encode('<I6I7I7B', SUMMARY, tail_expiry, earliest_expiry, 0) .. tail end
          end
