-- ARGV: 3.. tasks. Returns sequence, number of done tasks dropped.
local refused = refuse(true)
if refused then
  return refused
end
local dropped = 0
for i = 3, #ARGV do
  dropped = dropped + redis.call('HDEL', DONE, ARGV[i])
  redis.call('HDEL', RESULTS, ARGV[i])
end
return {redis.call('INCR', SEQ), dropped}
