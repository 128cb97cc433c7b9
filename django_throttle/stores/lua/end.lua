      end
    elseif kept then
      redis.call('SET', key, kept, 'PX', lifetime(reset))
    elseif redis.call('PTTL', key) == -1 then -- somebody made it immortal
      redis.call('PEXPIRE', key, lifetime(reset))
    end
  end
  reply[3 * i - 1], reply[3 * i], reply[3 * i + 1] = retry, remaining, reset
end
reply[1] = repaired
return reply
