-- Lines included by other scripts, with their KEYS, ARGV and reply.
-- Set `ages`, the counts of all sub-windows, newest first, from the numbers of a record of sub_windows.lua.
        ages = { newest, between, decode('<' .. string.rep(is_large and 'd' or 'I4', n - 2), older) }
        ages[n + 1] = oldest
        for age = 3, n do ages[2] = ages[2] - ages[age] end
