-- ARGV: 3 task. Returns sequence, 1 if it was in todo or doing.
local refused = refuse(true)
if refused then
  return refused
end
local token = holder(ARGV[3])
local found = redis.call('ZREM', TODO, ARGV[3])
if token then
  let_go(ARGV[3], token)
  found = 1
end
if found == 1 then
  redis.call('SADD', QUARANTINED, ARGV[3])
end
return {redis.call('INCR', SEQ), found}
