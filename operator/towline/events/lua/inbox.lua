-- inbox: posts one prompt, once per idempotency key.
--
-- KEYS  meta, log, inbox
-- ARGV  channel, idempotency key, content, delivery, sender
-- Reply {id, 1 or 0}: the prompt's id, `<n>-0`, the first is 1; the first one's for a repeated key, and 0 then tells
--       that the first had another content or delivery
-- Errors CLOSED; ABSENT for a run that does not exist, so that nothing is kept for it that would never expire
local run = load_run()
local posted = redis.call('HGET', META, 'i:' .. ARGV[2])
if posted then
  local entry = redis.call('XRANGE', KEYS[3], posted .. '-0', posted .. '-0')[1]
  local same = not entry or (entry[2][2] == ARGV[3] and entry[2][4] == ARGV[4])
  return { posted .. '-0', same and 1 or 0 }
end
if run.epoch == 0 then
  return redis.error_reply('ABSENT no run')
end
if run.closed then
  return closed(run)
end
local n = redis.call('HINCRBY', META, 'inbox_head', 1)
local id = redis.call('XADD', KEYS[3], n .. '-0', 'content', ARGV[3], 'delivery', ARGV[4], 'sender', ARGV[5], 'key', ARGV[2])
redis.call('HSET', META, 'i:' .. ARGV[2], n)
redis.call('PUBLISH', CHANNEL, 'inbox')
return { id, 1 }
