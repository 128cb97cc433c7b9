-- Lines for other scripts. KEYS, ARGV, reply: theirs.
-- Sets ages, the counts of all sub-windows, the newest first, of a record as sub_windows.lua keeps it.
        ages = { newest, between, decode('<' .. string.rep(is_large and 'd' or 'I4', n - 2), older) }
        ages[n + 1] = oldest
        for age = 3, n do ages[2] = ages[2] - ages[age] end
