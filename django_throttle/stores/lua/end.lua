      -- Closes every decision script.
      -- KEYS, ARGV: see prelude.lua. Reply: big-endian doubles in one text, which is read at once where an array is
      -- read number by number: values repaired, the time, then three a charge: retry (-1 never), remaining, reset;
      -- times in microseconds, as they stand afterwards.
      end
    elseif kept then
      redis.call('SET', key, kept, 'PX', lifetime(reset))
    elseif redis.call('PTTL', key) == -1 then -- somebody made it immortal
      redis.call('PEXPIRE', key, lifetime(reset))
    end
  end
  told = told + 1
  reply[told] = struct.pack('>ddd', retry, remaining, reset)
end
end
reply[1] = struct.pack('>dd', repaired, now)
return table.concat(reply)
