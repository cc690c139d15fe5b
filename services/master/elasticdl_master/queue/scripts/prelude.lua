-- Comes before every script. KEYS: 1 epoch, 2 sequence of moves, 3 ready, 4 todo, 5 doing, 6 tokens, 7 deadlines,
-- 8 done, 9 results, 10 quarantined, 11 notes, 12 posts. ARGV: 1 epoch of the caller, 2 last sequence that it saw.
-- doing: task -> "token owner"; tokens: token -> task; deadlines: task by seconds; todo: task by position.
local EPOCH, SEQ, READY, TODO, DOING, TOKENS, DEADLINES, DONE, RESULTS, QUARANTINED, NOTES, POSTS =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]

local function refuse(needs_ready)
  local epoch = tonumber(redis.call('GET', EPOCH) or '-1')
  if epoch > tonumber(ARGV[1]) then
    return redis.error_reply('FENCED ' .. epoch)
  end
  if not needs_ready then
    return nil
  end
  local seq = tonumber(redis.call('GET', SEQ) or '-1')
  if epoch < tonumber(ARGV[1]) or seq < tonumber(ARGV[2]) or redis.call('EXISTS', READY) == 0 then
    return redis.error_reply('LOST')
  end
  return nil
end

-- What is kept beside the queue: also before that is made, but not in a store that forgot moves.
local function refuse_behind()
  local refused = refuse(false)
  if not refused and tonumber(redis.call('GET', SEQ) or '0') < tonumber(ARGV[2]) then
    refused = redis.error_reply('LOST')
  end
  return refused
end

local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

local function head()
  local first = redis.call('ZRANGE', TODO, 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2]) or 0
end

local function tail()
  local last = redis.call('ZREVRANGE', TODO, 0, 0, 'WITHSCORES')
  return last[2] and tonumber(last[2]) or 0
end

local function number(value)
  return string.format('%.17g', value)
end

local function holder(task)
  local entry = redis.call('HGET', DOING, task)
  if not entry then
    return nil, nil
  end
  local token, owner = string.match(entry, '^(%S+) (.*)$')
  return token, owner
end

local function let_go(task, token)
  redis.call('HDEL', DOING, task)
  redis.call('HDEL', TOKENS, token)
  redis.call('ZREM', DEADLINES, task)
end

-- Takes leases back, the first of the sorted tasks to the very head; returns flat task, token, owner.
local function take_back(tasks)
  table.sort(tasks)
  local answer = {redis.call('INCR', SEQ)}
  for i = #tasks, 1, -1 do
    local task = tasks[i]
    local token, owner = holder(task)
    let_go(task, token)
    redis.call('ZADD', TODO, number(head() - 1), task)
    answer[#answer + 1] = task
    answer[#answer + 1] = token
    answer[#answer + 1] = owner
  end
  return answer
end
