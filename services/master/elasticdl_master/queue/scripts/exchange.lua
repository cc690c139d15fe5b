-- ARGV: 3 seconds, then for each request: owner, task to report or '', its token, its result, number of tasks to lease, a
-- nonce for each of them. Returns sequence, then for each request: outcome or '', number of leases, and task, token
-- of each.
local refused = refuse(true)
if refused then
  return refused
end
local seq = tonumber(redis.call('GET', SEQ))
local deadline = number(now() + tonumber(ARGV[3]))
local answer = {seq}

local function report(task, given, result)
  local token = holder(task)
  if token ~= given then
    local by = redis.call('HGET', DONE, task)
    return (by == given or by == '') and 'replay' or 'lost'
  end
  let_go(task, token)
  redis.call('HSET', DONE, task, token)
  if result ~= '' then
    redis.call('HSET', RESULTS, task, result)
  end
  seq = seq + 1
  return 'accepted'
end

-- Nonces are at `first` and after it.
local function lease(owner, limit, first)
  local popped = redis.call('ZPOPMIN', TODO, limit)
  answer[#answer + 1] = #popped / 2
  for i = 1, #popped, 2 do
    local task = popped[i]
    seq = seq + 1
    local token = ARGV[1] .. '.' .. seq .. '.' .. ARGV[first + (i - 1) / 2]
    redis.call('HSET', DOING, task, token .. ' ' .. owner)
    redis.call('HSET', TOKENS, token, task)
    redis.call('ZADD', DEADLINES, deadline, task)
    answer[#answer + 1] = task
    answer[#answer + 1] = token
  end
end

local at = 4
while at <= #ARGV do
  local task, limit = ARGV[at + 1], tonumber(ARGV[at + 4])
  local outcome = ''
  if task ~= '' then
    outcome = report(task, ARGV[at + 2], ARGV[at + 3])
  end
  answer[#answer + 1] = outcome
  if limit > 0 and (outcome == '' or outcome == 'accepted') then
    lease(ARGV[at], limit, at + 5)
  else
    answer[#answer + 1] = 0
  end
  at = at + 5 + limit
end
if seq ~= answer[1] then
  redis.call('SET', SEQ, number(seq))
  answer[1] = seq
end
return answer
