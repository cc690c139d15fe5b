-- ARGV: 3.. numbers of posts. Returns sequence.
local refused = refuse_behind()
if refused then
  return refused
end
for i = 3, #ARGV do
  redis.call('HDEL', POSTS, ARGV[i])
end
return {redis.call('INCR', SEQ)}
