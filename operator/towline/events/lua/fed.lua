-- fed: notes that the namespace's feed has the lifecycle events up to a seq.
--
-- KEYS  meta, log
-- ARGV  channel, seq
-- Reply how many are still to be fed
-- Errors none
local left = {}
for seq in string.gmatch(redis.call('HGET', META, 'unfed') or '', '%d+') do
  if tonumber(seq) > tonumber(ARGV[2]) then
    left[#left + 1] = seq
  end
end
if #left > 0 then
  redis.call('HSET', META, 'unfed', table.concat(left, ' '))
else
  redis.call('HDEL', META, 'unfed')
end
return #left
