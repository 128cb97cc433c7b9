-- A function for other scripts. KEYS, ARGV, reply: theirs.
-- Where a record begins and where the one after it, and whether its state has the length that its head says; `from` is
-- where to begin. Where there is none: nil, and where the value ends, or what is no record begins.
local function seek(value, head, from)
  local id, wanted = decode('<c6H', head)
  local size = #value
  while size - from >= 14 do
    local found, length = decode('<c6H', value, from + 7)
    local after = from + 15 + length
    if after > size + 1 then break end
    if found == id then return from, after, length == wanted or wanted == 65535 end
    from = after
  end
  return nil, from
end
