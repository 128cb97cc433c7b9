-- Lines included by other scripts, with their KEYS, ARGV and reply.
-- Set the numbers of a record of sub_windows.lua from `ages`, the counts of all sub-windows.
        newest, between, oldest = ages[1], 0, ages[n + 1]
        for age = 2, n do between = between + ages[age] end
        older = encode('<' .. string.rep(is_large and 'd' or 'I4', n - 2), unpack(ages, 3, n))
