-- ARGV: 3 'front' or 'back', 4.. tasks. Returns sequence, number added.
local refused = refuse(true)
if refused then
  return refused
end
local added = {}
local seen = {}
for i = 4, #ARGV do
  local task = ARGV[i]
  if not seen[task] and not redis.call('ZSCORE', TODO, task) and redis.call('HEXISTS', DOING, task) == 0
    and redis.call('HEXISTS', DONE, task) == 0 and redis.call('SISMEMBER', QUARANTINED, task) == 0 then
    seen[task] = true
    added[#added + 1] = task
  end
end
local base = tail()
if ARGV[3] == 'front' then
  base = head() - #added - 1
end
for i, task in ipairs(added) do
  redis.call('ZADD', TODO, number(base + i), task)
end
return {redis.call('INCR', SEQ), #added}
