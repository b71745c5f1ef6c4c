-- sandbox: one transition of a run's sandbox record, and its event.
--
-- The record holds name, state (Starting, Ready, Lost, Failed, Suspended, Deleted), address, provider, reason, message, generation,
-- told: the last sandbox of which a result says that its workspace began anew (written by call), and previous: the name
-- before the one that is starting.
-- An event is logged once per sandbox name; after the end of the run only the record changes.
--
-- KEYS  meta, log, sandbox
-- ARGV  channel, 'want',    then id, type, time, turn, data of sandbox.requested
--       channel, 'ready',   epoch, name, address, provider, generation, then the event sandbox.ready
--       channel, 'lost',    epoch, name, generation (0: as the record has it), Lost or Failed, reason, message, then the
--                           event sandbox.lost, then its src: the gateway gives up a sandbox that does not answer,
--                           though the operator sees it alive
--       channel, 'suspended' or 'deleted', epoch, name, then the event sandbox.suspended or sandbox.deleted
-- Reply {1 if this call changed the record else 0, name, state, address, provider, reason, message, generation, told}
-- Errors want: CLOSED; the others: STALE
local SANDBOX, verb = KEYS[3], ARGV[2]
local run = load_run()

local function answer(changed)
  local reply = redis.call('HMGET', SANDBOX, 'name', 'state', 'address', 'provider', 'reason', 'message', 'generation', 'told')
  table.insert(reply, 1, changed and 1 or 0)
  return reply
end

-- Logs the event at ARGV[at..] unless the run has ended.
local function log(src, at)
  if not run.closed then
    add(run, src, ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
    commit(run)
  end
end

local function first_time(name)
  return redis.call('HSETNX', META, 's:' .. verb .. ':' .. name, '1') == 1
end

local state = redis.call('HGET', SANDBOX, 'state')
if verb == 'want' then
  if state == 'Ready' then
    return answer(false)
  end
  if run.closed then
    return closed(run)
  end
  if redis.call('HGET', META, 'want') == 'sandbox' then
    return answer(false)
  end
  -- Each want is a new generation, and Starting until the operator answers it: a waiter cannot take the Lost or Failed of
  -- the sandbox before for the answer to its own want.
  redis.call('HSET', META, 'want', 'sandbox')
  redis.call('HINCRBY', SANDBOX, 'generation', 1)
  local previous = redis.call('HGET', SANDBOX, 'name') or ''
  redis.call('HSET', SANDBOX, 'state', 'Starting', 'name', '', 'previous', previous, 'address', '', 'reason', '', 'message', '')
  log('gateway', 3)
  redis.call('PUBLISH', CHANNEL, 'want')
  return answer(true)
end

local refused = fence(run, tonumber(ARGV[3]))
if refused then
  return refused
end
local name = ARGV[4]
local current = redis.call('HGET', SANDBOX, 'name')
local changed = false

if verb == 'ready' then
  if redis.call('HEXISTS', META, 's:lost:' .. name) == 1 then
    return answer(false)
  end
  changed = first_time(name)
  redis.call('HSET', SANDBOX, 'name', name, 'state', 'Ready', 'address', ARGV[5], 'provider', ARGV[6], 'reason', '', 'message', '', 'generation', ARGV[7])
  redis.call('HDEL', META, 'want')
  if changed then
    log('operator', 8)
  end
elseif verb == 'lost' then
  changed = first_time(name)
  -- Another sandbox may be ready or starting by now: the loss of its predecessor does not concern it.
  local another = (state == 'Ready' and current ~= name) or (state == 'Starting' and redis.call('HGET', SANDBOX, 'previous') == name)
  if not another then
    local starting = state == 'Starting'
    if changed or starting then
      -- One that was made unasked has had its name too: the next want must not get it again.
      local generation = math.max(tonumber(redis.call('HGET', SANDBOX, 'generation')) or 0, tonumber(ARGV[5]))
      redis.call('HSET', SANDBOX, 'name', name, 'state', ARGV[6], 'address', '', 'reason', ARGV[7], 'message', ARGV[8], 'generation', generation)
    end
    if starting then
      redis.call('HDEL', META, 'want')
    end
  end
  if changed then
    log(ARGV[14], 9)
  end
else
  changed = first_time(name)
  if current == name then
    redis.call('HSET', SANDBOX, 'state', verb == 'deleted' and 'Deleted' or 'Suspended', 'address', '')
  end
  if changed then
    log('operator', 5)
  end
end
redis.call('PUBLISH', CHANNEL, 'sandbox')
return answer(changed)
