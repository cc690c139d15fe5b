-- ARGV: 3 task, 4 token, 5 front or '', 6 rest or '', 7 result to keep with the front or ''. Returns sequence, outcome.
local refused = refuse(true)
if refused then
  return refused
end
local token = holder(ARGV[3])
if token ~= ARGV[4] then
  local outcome = 'lost'
  if ARGV[5] ~= '' and redis.call('HGET', DONE, ARGV[5]) == ARGV[4] then
    outcome = 'replay'
  end
  return {tonumber(redis.call('GET', SEQ)), outcome}
end
let_go(ARGV[3], token)
if ARGV[5] ~= '' then
  redis.call('HSET', DONE, ARGV[5], token)
  if ARGV[7] ~= '' then
    redis.call('HSET', RESULTS, ARGV[5], ARGV[7])
  end
end
if ARGV[6] ~= '' then
  redis.call('ZADD', TODO, number(head() - 1), ARGV[6])
end
return {redis.call('INCR', SEQ), 'accepted'}
