-- phase: tells a change of the run's phase, once: `run.status` goes into the log when the phase is another than the last
-- one told.
--
-- KEYS  meta, log
-- ARGV  channel, epoch, phase, then id, type, time, turn, data of run.status
-- Reply 1 when it was told, 0 when it was known, or the run has ended, whose terminal event says more
-- Errors STALE
local run = load_run()
local refused = fence(run, tonumber(ARGV[2]))
if refused then
  return refused
end
if run.closed or (redis.call('HGET', META, 'phase') or 'Pending') == ARGV[3] then
  return 0
end
add(run, 'operator', ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8])
commit(run, 'phase', ARGV[3])
return 1
