-- Removes everything but epoch, sequence and posts; with ARGV 3 the posts, too. Returns sequence.
local refused = refuse(false)
if refused then
  return refused
end
redis.call('UNLINK', READY, TODO, DOING, TOKENS, DEADLINES, DONE, RESULTS, QUARANTINED, NOTES)
if ARGV[3] then
  redis.call('DEL', POSTS)
end
redis.call('SET', EPOCH, ARGV[1])
local seq = math.max(tonumber(redis.call('GET', SEQ) or '0'), tonumber(ARGV[2])) + 1
redis.call('SET', SEQ, number(seq))
return {seq}
