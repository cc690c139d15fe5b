-- ARGV: 3 task, 4 token, 5 result. Returns sequence, outcome.
local refused = refuse(true)
if refused then
  return refused
end
local token = holder(ARGV[3])
if token ~= ARGV[4] then
  local by = redis.call('HGET', DONE, ARGV[3])
  local outcome = (by == ARGV[4] or by == '') and 'replay' or 'lost'
  return {tonumber(redis.call('GET', SEQ)), outcome}
end
let_go(ARGV[3], token)
redis.call('HSET', DONE, ARGV[3], token)
if ARGV[5] ~= '' then
  redis.call('HSET', RESULTS, ARGV[3], ARGV[5])
end
return {redis.call('INCR', SEQ), 'accepted'}
