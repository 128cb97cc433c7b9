-- Lines for other scripts. KEYS, ARGV, reply: theirs.
-- Sets counts, a record as sub_windows.lua keeps it, of ages, the counts of all sub-windows.
        between = 0
        for age = 2, n do between = between + ages[age] end
        counts = encode('<' .. string.rep('d', n + 1), ages[1], between, ages[n + 1], unpack(ages, 3, n))
