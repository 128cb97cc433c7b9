-- Notes a run that waits for a slot, behind all others or before them; without effect on the place of one that is noted.
-- KEYS[1] the index of the leases. Beside it, with the same hash tag: index:> the names of those that wait (sorted set),
-- index:>:<name> what each needs to be called.
-- ARGV[1] now in microseconds ("" for the server's clock), ARGV[2] the name, ARGV[3] what it needs, ARGV[4] milliseconds
-- to live, ARGV[5] "1" for before the others, ARGV[6] how many may wait
-- Reply: its place, from 1 on; 0 for one too many
--- use clock
local waiting, lasts = KEYS[1] .. ':>', math.max(least_lifetime, tonumber(ARGV[4]))
local place = redis.pcall('ZSCORE', waiting, ARGV[2])
if type(place) == 'table' then -- an error: a foreign value
  redis.call('DEL', waiting)
  place = false
end
local length = redis.call('ZCARD', waiting)
if not place then
  if length >= tonumber(ARGV[6]) then return 0 end
  local order = now
  if length > 0 then
    if ARGV[5] == '1' then
      order = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2] - 1
    else
      order = math.max(now, redis.call('ZRANGE', waiting, -1, -1, 'WITHSCORES')[2] + 1)
    end
  end
  redis.call('ZADD', waiting, string.format('%d', order), ARGV[2])
  length = length + 1
end
redis.call('PEXPIRE', waiting, lasts)
redis.call('SET', waiting .. ':' .. ARGV[2], ARGV[3], 'PX', lasts)
return place and redis.call('ZCOUNT', waiting, '-inf', place) or ARGV[5] == '1' and 1 or length
