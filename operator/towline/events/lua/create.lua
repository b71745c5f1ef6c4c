-- create: begins a run: its snapshot, its name and `run.started`, once.
--
-- KEYS  meta, log, spec
-- ARGV  channel, name, snapshot, then id, type, time, turn, data of run.started
-- Reply 1 when this call began the run, 0 when it existed
-- Errors none
local run = load_run()
if redis.call('HEXISTS', META, 'g:run.started') == 1 then
  return 0
end
redis.call('SET', KEYS[3], ARGV[3], 'NX')
run.epoch = math.max(run.epoch, 1)
local seq = add(run, 'operator', ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8])
commit(run, 'epoch', run.epoch, 'incarnation', run.incarnation, 'name', ARGV[2], 'g:run.started', seq .. ' ' .. seq)
return 1
