-- ARGV: 3 text. Returns sequence.
local refused = refuse(true)
if refused then
  return refused
end
redis.call('SET', NOTES, ARGV[3])
return {redis.call('INCR', SEQ)}
