-- Returns sequence, then task, token, owner of each lease whose time is over.
local refused = refuse(true)
if refused then
  return refused
end
return take_back(redis.call('ZRANGEBYSCORE', DEADLINES, '-inf', number(now())))
