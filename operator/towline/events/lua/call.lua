-- call: one transition of a tool call in the ledger, and its event.
--
-- The ledger holds for each call id
--   <id>         "<state> <args hash> <turn or -> <seq of agent.tool_use> <sandbox or -> <instance or -> <claim's event id> <result's event id or ->"
--                state: claimed -> dispatched -> settled, or claimed -> settled
--   <id>:name    the tool's name as a JSON string
--   <id>:result  data of agent.tool_result, once settled
--   <id>:cancel  "1" once somebody asked a dispatched call to end: whoever executes it kills it
--   <id>:late    data of a result that came after the run had ended and the call was settled without it
--
-- KEYS  meta, log, calls
-- ARGV  channel, 'claim',    id, epoch, name (JSON string), args hash, then id, type, time, turn, data of agent.tool_use
--       channel, 'cancel',   id, epoch, name, args hash, then id, type, time, turn, data of agent.tool_use and agent.tool_result:
--                            a call that nobody executes is settled so; one that was dispatched is only marked
--       channel, 'dispatch', id, sandbox, instance
--       channel, 'settle',   id, then id, type, time, turn, data of each event; the last is agent.tool_result
-- Reply {1 if this request made the transition (also when repeated) else 0, line, name, result or false, cancel or false}
-- Errors claim, cancel: STALE, CANCELLED <reason>, CLOSED, MISMATCH <id>; dispatch, settle: UNKNOWN <id>
local CALLS, verb, id = KEYS[3], ARGV[2], ARGV[3]
local run = load_run()

local function words(line)
  local list = {}
  for word in string.gmatch(line, '%S+') do
    list[#list + 1] = word
  end
  return list
end

local function answer(ours)
  local v = redis.call('HMGET', CALLS, id, id .. ':name', id .. ':result', id .. ':cancel')
  return { ours and 1 or 0, v[1], v[2], v[3], v[4] }
end

local line = redis.call('HGET', CALLS, id)
local call = line and words(line)

local function store(...)
  redis.call('HSET', CALLS, id, table.concat(call, ' '), ...)
end

local function add_events(from, to)
  for i = from, to, 5 do
    add(run, 'gateway', ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
  end
end

if verb == 'claim' or verb == 'cancel' then
  local epoch, name, args = tonumber(ARGV[4]), ARGV[5], ARGV[6]
  local refused = fence(run, epoch)
  if refused then
    return refused
  end
  if call then
    if call[2] ~= args or redis.call('HGET', CALLS, id .. ':name') ~= name then
      return redis.error_reply('MISMATCH ' .. id)
    end
  else
    if run.cancel then
      return redis.error_reply('CANCELLED ' .. run.cancel)
    end
    if run.closed then
      return closed(run)
    end
    add_events(7, 7)
    call = { 'claimed', args, ARGV[10] == '' and '-' or ARGV[10], run.head, '-', '-', ARGV[7], '-' }
    store(id .. ':name', name)
    redis.call('HINCRBY', META, 'tool_calls', 1)
    commit(run, 'progress', run.head)
  end
  if verb == 'claim' then
    return answer(call[7] == ARGV[7])
  end
  if call[1] == 'claimed' then
    call[1], call[8] = 'settled', ARGV[12]
    store(id .. ':result', ARGV[16])
    add_events(12, 12)
    commit(run, 'progress', run.head)
  elseif call[1] == 'dispatched' then
    redis.call('HSET', CALLS, id .. ':cancel', '1')
  end
  redis.call('PUBLISH', CHANNEL, 'cancel')
  return answer(call[8] == ARGV[12])
end

if not call then
  return redis.error_reply('UNKNOWN ' .. id)
end

if verb == 'dispatch' then
  local sandbox, instance = ARGV[4], ARGV[5]
  if call[1] == 'claimed' then
    call[1], call[5], call[6] = 'dispatched', sandbox, instance
    store()
  end
  return answer(call[1] == 'dispatched' and call[5] == sandbox and call[6] == instance)
end

-- settle: accepted whatever the epoch, stamped with the current one: work done is not thrown away.
local event, data = ARGV[#ARGV - 4], ARGV[#ARGV]
if call[1] == 'settled' then
  if call[8] ~= event and run.closed then
    redis.call('HSETNX', CALLS, id .. ':late', data)
  end
  return answer(call[8] == event)
end
call[1], call[8] = 'settled', event
store(id .. ':result', data)
if not run.closed then
  add_events(4, #ARGV - 4)
  commit(run, 'progress', run.head)
end
return answer(true)
