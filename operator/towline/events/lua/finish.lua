-- finish: settles every open call, appends the one terminal event and closes the log.
--
-- KEYS  meta, log, calls
-- ARGV  channel, src, epoch, nonce, n, acknowledged, incarnation, events of others (see append), outcome of open calls,
--       number of the last prompt seen by the harness (empty: the run ends whatever waits in the inbox),
--       then id, type, time, turn, data of the terminal event
--       The operator gives an empty nonce: it is no producer, and what it writes raises the epoch.
-- Reply {first seq, terminal seq, incarnation}; the terminal seq is the same for a repeat of the same event id;
--       or {'LOST', head, incarnation}, and nothing is done: see append
-- Errors STALE, CLOSED, ORDER; UNREAD <n> when n prompts came after the last one that the harness saw: a prompt is
--       answered or refused by CLOSED, never accepted and then passed over
local CALLS = KEYS[3]
local src, epoch, nonce, n, outcome = ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5]), ARGV[9]
local id, kind, time, turn, data = ARGV[11], ARGV[12], ARGV[13], ARGV[14], ARGV[15]
local run = load_run()

if run.closed then
  local event, seq = string.match(redis.call('HGET', META, 'terminal') or '', '^(%S+) (%d+)$')
  if event == id then
    return { tonumber(seq), tonumber(seq), run.incarnation }
  end
end
local refused = fence(run, epoch)
if refused then
  return refused
end
if run.closed then
  return closed(run)
end
if nonce ~= '' then
  local standing, err = producer(run, src, epoch, nonce, n)
  if not standing then
    return err
  end
  if loss(run, tonumber(ARGV[6]), tonumber(ARGV[7]), standing == 'lost' or replaced(ARGV[8])) then
    return { 'LOST', run.head, run.incarnation }
  end
end
if ARGV[10] ~= '' then
  local unread = (tonumber(redis.call('HGET', META, 'inbox_head')) or 0) - tonumber(ARGV[10])
  if unread > 0 then
    return redis.error_reply('UNREAD ' .. unread)
  end
end

local open = {}
for _, field in ipairs(redis.call('HKEYS', CALLS)) do
  if not string.find(field, ':', 1, true) then
    local line = redis.call('HGET', CALLS, field)
    local state, args, at, seq, sandbox, instance, claim = string.match(line, '^(%S+) (%S+) (%S+) (%d+) (%S+) (%S+) (%S+)')
    if state ~= 'settled' then
      local rest = args .. ' ' .. at .. ' ' .. seq .. ' ' .. sandbox .. ' ' .. instance .. ' ' .. claim
      open[#open + 1] = { id = field, turn = at == '-' and '' or at, seq = tonumber(seq), rest = rest }
    end
  end
end
table.sort(open, function(a, b)
  return a.seq < b.seq
end)

local first = run.head + 1
for _, call in ipairs(open) do
  local event = id_from(id .. ' ' .. call.id)
  local result = '{"call_id":"' .. call.id .. '","name":' .. redis.call('HGET', CALLS, call.id .. ':name')
    .. ',"outcome":"' .. outcome .. '","is_error":true'
    .. ',"content":[{"type":"text","text":"The run ended before this call did."}]'
    .. ',"duration_ms":0,"truncated":false,"total_bytes":0,"exit_code":null}'
  local seq = add(run, src, event, 'agent.tool_result', time, call.turn, result)
  redis.call('HSET', CALLS, call.id, 'settled ' .. call.rest .. ' ' .. event .. ' ' .. seq, call.id .. ':result', result)
end
local seq = add(run, src, id, kind, time, turn, data)
redis.call('HDEL', META, 'want')
commit(run, 'closed', kind, 'terminal', id .. ' ' .. seq)
redis.call('PUBLISH', CHANNEL, 'closed')
return { first, seq, run.incarnation }
