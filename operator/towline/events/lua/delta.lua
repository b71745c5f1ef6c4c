-- delta: adds a piece of the message or command in progress to the capped stream of deltas.
--
-- KEYS  meta, log, live
-- ARGV  channel, epoch, approximate number of deltas kept, then field, value, …
-- Reply the entry's id
-- Errors STALE, CLOSED
local run = load_run()
local refused = fence(run, tonumber(ARGV[2]))
if refused then
  return refused
end
if run.closed then
  return closed(run)
end
local id = redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[3], '*', unpack(ARGV, 4))
redis.call('PUBLISH', CHANNEL, 'live:' .. id)
return id
