-- call: one transition of a tool call in the ledger, and its event.
--
-- The ledger holds for each call id
--   <id>         "<state> <args hash> <turn or -> <seq of agent.tool_use> <sandbox or -> <instance or -> <claim's event id>
--                <result's event id or -> <seq of agent.tool_result or ->"
--                state: claimed -> dispatched -> settled, or claimed -> settled
--   <id>:name    the tool's name as a JSON string
--   <id>:result  data of agent.tool_result, once settled; empty if that is large: the log has it, at the seq in the line
--   <id>:cancel  "1" once somebody asked a dispatched call to end: whoever executes it kills it
--   <id>:late    data of a result that came after the run had ended and the call was settled without it
--
-- KEYS  meta, log, calls, sandbox
-- ARGV  channel, 'claim',    id, epoch, name (JSON string), args hash, then id, type, time, turn, data of agent.tool_use
--                            and before it up to which seq, under which incarnation, the harness saw the log confirmed (or 0, 0),
--                            and "<seq> <id>" of the event there (or empty)
--       channel, 'cancel',   the same, then the event agent.tool_result: a call that nobody executes is settled so; one that
--                            was dispatched is only marked
--       channel, 'dispatch', id, time, seq of the claim, incarnation, sandbox, instance
--       channel, 'settle',   id, time, seq of the claim, incarnation, the sandbox that the result tells to be a new one or '',
--                            then id, type, time, turn, data of each event; the last is agent.tool_result
-- Reply {1 if this request made the transition (also when repeated) else 0, line, name, result or false, cancel or false,
--       incarnation}; or, when the store has lost this claim or what comes before it, {'LOST', head, incarnation}, and it
--       is logged: see the prelude
-- Errors claim, cancel: STALE, CANCELLED <reason>, CLOSED, MISMATCH <id>; dispatch, settle: UNKNOWN <id>
local CALLS, SANDBOX, verb, id = KEYS[3], KEYS[4], ARGV[2], ARGV[3]
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
  return { ours and 1 or 0, v[1], v[2], v[3], v[4], run.incarnation }
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
    local seq, incarnation, gone = tonumber(ARGV[7]), tonumber(ARGV[8]), replaced(ARGV[9])
    local standing = loss(run, seq, incarnation, gone)
    if standing == 'new' then
      return tell_loss(run, 'gateway', ARGV[12], seq, incarnation, gone and math.min(run.head, seq - 1) or run.head)
    elseif standing then
      return { 'LOST', run.head, run.incarnation }
    end
    add_events(10, 10)
    call = { 'claimed', args, ARGV[13] == '' and '-' or ARGV[13], run.head, '-', '-', ARGV[10], '-', '-' }
    store(id .. ':name', name)
    redis.call('HINCRBY', META, 'tool_calls', 1)
    commit(run, 'progress', run.head)
  end
  if verb == 'claim' then
    return answer(call[7] == ARGV[10])
  end
  if call[1] == 'claimed' then
    add_events(15, 15)
    call[1], call[8], call[9] = 'settled', ARGV[15], run.head
    store(id .. ':result', ARGV[19])
    commit(run, 'progress', run.head)
  elseif call[1] == 'dispatched' then
    redis.call('HSET', CALLS, id .. ':cancel', '1')
  end
  redis.call('PUBLISH', CHANNEL, 'cancel')
  return answer(call[8] == ARGV[15])
end

if not call then
  local seq, incarnation = tonumber(ARGV[5]), tonumber(ARGV[6])
  if seq == 0 or run.closed then
    return redis.error_reply('UNKNOWN ' .. id)
  end
  if loss(run, seq, incarnation, true) == 'told' then
    return { 'LOST', run.head, run.incarnation }
  end
  return tell_loss(run, 'gateway', ARGV[4], seq, incarnation, math.min(run.head, seq - 1))
end

if verb == 'dispatch' then
  local sandbox, instance = ARGV[7], ARGV[8]
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
if not run.closed then
  add_events(8, #ARGV - 4)
  commit(run, 'progress', run.head)
end
call[1], call[8], call[9] = 'settled', event, run.closed and '-' or run.head
store(result_fields(id, data, call[9]))
if ARGV[7] ~= '' then
  redis.call('HSET', SANDBOX, 'told', ARGV[7])
end
return answer(true)
