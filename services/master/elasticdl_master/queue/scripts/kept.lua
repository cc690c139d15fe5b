-- Returns sequence, flat number and text of each post.
local refused = refuse(false)
if refused then
  return refused
end
return {tonumber(redis.call('GET', SEQ) or '0'), redis.call('HGETALL', POSTS)}
