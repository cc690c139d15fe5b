-- What reading the posts begins with, which are read in portions. Returns sequence.
local refused = refuse(false)
if refused then
  return refused
end
return {tonumber(redis.call('GET', SEQ) or '0')}
