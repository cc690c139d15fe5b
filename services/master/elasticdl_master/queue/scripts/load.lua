-- What a load begins and ends with; the rest is read in portions. Returns sequence, ready, number of todo, notes.
local refused = refuse(false)
if refused then
  return refused
end
return {
  tonumber(redis.call('GET', SEQ) or '0'), redis.call('EXISTS', READY), redis.call('ZCARD', TODO),
  redis.call('GET', NOTES) or ''
}
