-- Returns sequence, ready, todo, doing, done, results, quarantined, notes at one instant.
local refused = refuse(false)
if refused then
  return refused
end
return {
  tonumber(redis.call('GET', SEQ) or '0'), redis.call('EXISTS', READY), redis.call('ZRANGE', TODO, 0, -1),
  redis.call('HGETALL', DOING), redis.call('HGETALL', DONE),
  redis.call('HGETALL', RESULTS), redis.call('SMEMBERS', QUARANTINED), redis.call('GET', NOTES) or ''
}
