-- ARGV: 3 owner. Returns sequence, then task, token, owner of each lease of that owner.
local refused = refuse(true)
if refused then
  return refused
end
local tasks = {}
local all = redis.call('HGETALL', DOING)
for i = 1, #all, 2 do
  local _, owner = string.match(all[i + 1], '^(%S+) (.*)$')
  if owner == ARGV[3] then
    tasks[#tasks + 1] = all[i]
  end
end
return take_back(tasks)
