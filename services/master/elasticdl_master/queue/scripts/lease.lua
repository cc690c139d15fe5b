-- ARGV: 3 owner, 4 seconds, 5.. a nonce for each lease. Returns sequence, then task, token, deadline each.
local refused = refuse(true)
if refused then
  return refused
end
local answer = {redis.call('INCR', SEQ)}
local deadline = number(now() + tonumber(ARGV[4]))
for i = 5, #ARGV do
  local popped = redis.call('ZPOPMIN', TODO)
  local task = popped[1]
  if not task then
    break
  end
  local token = ARGV[1] .. '.' .. redis.call('INCR', SEQ) .. '.' .. ARGV[i]
  redis.call('HSET', DOING, task, token .. ' ' .. ARGV[3])
  redis.call('HSET', TOKENS, token, task)
  redis.call('ZADD', DEADLINES, deadline, task)
  answer[#answer + 1] = task
  answer[#answer + 1] = token
  answer[#answer + 1] = deadline
end
answer[1] = tonumber(redis.call('GET', SEQ))
return answer
