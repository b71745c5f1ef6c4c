-- cancel: asks for the end of a run. No new call may begin; whoever executes one hears it. The first reason stays.
--
-- KEYS  meta, log
-- ARGV  channel, reason
-- Reply 1, or 0 when the run has ended
-- Errors ABSENT for a run that does not exist, so that nothing is kept for it that would never expire
local run = load_run()
if run.epoch == 0 then
  return redis.error_reply('ABSENT no run')
end
if run.closed then
  return 0
end
redis.call('HSETNX', META, 'cancel', ARGV[2])
redis.call('PUBLISH', CHANNEL, 'cancel')
return 1
