-- inbox: posts one prompt, once per idempotency key.
--
-- KEYS  meta, log, inbox
-- ARGV  channel, idempotency key, content, delivery, sender
-- Reply the prompt's id, `<n>-0`, the first is 1; the first one's for a repeated key
-- Errors CLOSED
local run = load_run()
local posted = redis.call('HGET', META, 'i:' .. ARGV[2])
if posted then
  return posted .. '-0'
end
if run.closed then
  return closed(run)
end
local n = redis.call('HINCRBY', META, 'inbox_head', 1)
local id = redis.call('XADD', KEYS[3], n .. '-0', 'content', ARGV[3], 'delivery', ARGV[4], 'sender', ARGV[5], 'key', ARGV[2])
redis.call('HSET', META, 'i:' .. ARGV[2], n)
redis.call('PUBLISH', CHANNEL, 'inbox')
return id
