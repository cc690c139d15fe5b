-- One piece of a rebuild. ARGV: 3 place, 4.. entries: todo task; doing task, token, owner, seconds; done task, token;
-- results task, result; quarantined task; notes text; ready nothing. Returns sequence.
local refused = refuse(false)
if refused then
  return refused
end
local place = ARGV[3]
if place == 'todo' then
  local base = tail()
  for i = 4, #ARGV do
    redis.call('ZADD', TODO, number(base + i), ARGV[i])
  end
elseif place == 'doing' then
  local at = now()
  for i = 4, #ARGV, 4 do
    redis.call('HSET', DOING, ARGV[i], ARGV[i + 1] .. ' ' .. ARGV[i + 2])
    redis.call('HSET', TOKENS, ARGV[i + 1], ARGV[i])
    redis.call('ZADD', DEADLINES, number(at + tonumber(ARGV[i + 3])), ARGV[i])
  end
elseif place == 'done' or place == 'results' then
  for i = 4, #ARGV, 2 do
    redis.call('HSET', place == 'done' and DONE or RESULTS, ARGV[i], ARGV[i + 1])
  end
elseif place == 'quarantined' then
  for i = 4, #ARGV do
    redis.call('SADD', QUARANTINED, ARGV[i])
  end
elseif place == 'notes' then
  redis.call('SET', NOTES, ARGV[4])
else
  redis.call('SET', READY, ARGV[1])
end
return {redis.call('INCR', SEQ)}
