-- Tables of strings and small tables under a tracing collector, a sort, then look-ups at random.
local seed = 42
local function next_number() seed = (seed * 1103515245 + 12345) % 2147483648 return seed end
local rows = {}
for i = 1, 1000000 do rows['key-' .. next_number()] = {i, 'value-' .. i} end
local keys = {}
for key in pairs(rows) do keys[#keys + 1] = key end
table.sort(keys)
local sum = 0
for _ = 1, 300000 do sum = sum + rows[keys[next_number() % #keys + 1]][1] end
print(#keys, sum, keys[1], keys[#keys])
