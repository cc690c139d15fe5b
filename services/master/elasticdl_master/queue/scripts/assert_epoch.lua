-- Runs first on every new connection. KEYS: 1 epoch. ARGV: 1 epoch. Raises the epoch, never lowers it.
local epoch = tonumber(redis.call('GET', KEYS[1]) or '-1')
if epoch > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED ' .. epoch)
end
redis.call('SET', KEYS[1], ARGV[1])
return epoch
