-- ARGV: 3 owner, 4 seconds, 5.. tokens. Returns sequence, then the lost tokens.
local refused = refuse(true)
if refused then
  return refused
end
local answer = {tonumber(redis.call('GET', SEQ))}
local deadline = number(now() + tonumber(ARGV[4]))
for i = 5, #ARGV do
  local task = redis.call('HGET', TOKENS, ARGV[i])
  local _, owner = nil, nil
  if task then
    _, owner = holder(task)
  end
  if owner == ARGV[3] then
    redis.call('ZADD', DEADLINES, deadline, task)
  else
    answer[#answer + 1] = ARGV[i]
  end
end
return answer
