-- Lines included by other scripts, with their KEYS, ARGV and reply.
-- Set `weight`, the counted part of the oldest window: all of it if strict, else ceil(oldest * rest / sub_window).
-- Products from 2^52 on are left to the exact test.
      local weight = oldest
      if oldest > 0 and not strict then
        weight = oldest * rest
        local part = weight % sub_window
        weight = weight < EXACT / 2 and (weight - part) / sub_window + (part > 0 and 1 or 0) or limit + 1
      end
