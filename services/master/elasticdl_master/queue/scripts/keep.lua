-- ARGV: 3.. number of a post, its text. Also before the queue is made. Returns sequence.
local refused = refuse_behind()
if refused then
  return refused
end
for i = 3, #ARGV, 2 do
  redis.call('HSET', POSTS, ARGV[i], ARGV[i + 1])
end
return {redis.call('INCR', SEQ)}
