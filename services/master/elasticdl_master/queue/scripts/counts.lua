-- Returns sequence, todo, doing, done, quarantined.
local refused = refuse(true)
if refused then
  return refused
end
return {
  tonumber(redis.call('GET', SEQ)), redis.call('ZCARD', TODO), redis.call('HLEN', DOING), redis.call('HLEN', DONE),
  redis.call('SCARD', QUARANTINED)
}
