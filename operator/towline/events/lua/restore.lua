-- restore: puts back what the store has lost of a writer's tail: its own appends, and tool calls whose results it took
-- over from the gateway, with their lines in the ledger; in their old order, under their old ids. If nobody has noticed
-- the loss before, it is logged here. Nothing happens when nothing was lost, and a repeat changes nothing.
--
-- KEYS  meta, log, calls, inbox
-- ARGV  channel, src, epoch, nonce, n of its last append, acknowledged, incarnation, events of others (see append), time,
--       the lowest seq of what follows,
--       then in order any number of
--         'append', seq, number of events, turns, tool_calls, … (the increments of append),
--                   then id, type, time, turn, data for each event
--         'call',   seq of the claim, number of events, seq of the result, call id, name (JSON string), args hash,
--                   then the same for each: agent.tool_use first, agent.tool_result last
-- Reply {number of events put back, head, incarnation, then first and last seq of each, 0 and 0 for what was not lost}
-- Errors STALE, CLOSED
local CALLS = KEYS[3]
local src, epoch, nonce, n, time = ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5]), ARGV[9]
local acknowledged, incarnation = tonumber(ARGV[6]), tonumber(ARGV[7])
local run = load_run()
local refused = fence(run, epoch)
if refused then
  return refused
end
if run.closed then
  return closed(run)
end
local standing, err, _, field = producer(run, src, epoch, nonce, n + 1)
if not standing then
  return err
end
local noticed = loss(run, acknowledged, incarnation, standing == 'lost' or replaced(ARGV[8]))
if not noticed then
  return { 0, run.head, run.incarnation }
end

local SUMS = { 'turns', 'tool_calls', 'input_tokens', 'output_tokens', 'cached_input_tokens', 'cost_micro_usd', 'prompts' }
local present = {}
for _, entry in ipairs(redis.call('XRANGE', LOG, ARGV[10] .. '-0', '+')) do
  present[entry[2][2]] = true
end

-- What is missing, and the last seq below all that is not what it was.
local items, at = {}, 11
local survived = math.max(run.head, last_id())
while at <= #ARGV do
  local item = { kind = ARGV[at], seq = tonumber(ARGV[at + 1]), count = tonumber(ARGV[at + 2]), at = at + 3 }
  if item.kind == 'append' then
    -- An append is one script, so it is in the log as a whole or not at all.
    item.events = item.at + #SUMS
    item.missing = not present[ARGV[item.events]]
    survived = math.min(survived, item.missing and item.seq - 1 or survived)
  else
    item.events = item.at + 4
    item.state = string.match(redis.call('HGET', CALLS, ARGV[item.at + 1]) or '', '^%S+')
    -- Settled: it was not lost, or was asked for again. Otherwise the claim may have survived its result.
    item.missing = item.state ~= 'settled'
    if not present[ARGV[item.events]] then
      survived = math.min(survived, item.seq - 1)
    elseif not present[ARGV[item.events + 5 * (item.count - 1)]] then
      survived = math.min(survived, tonumber(ARGV[item.at]) - 1)
    end
  end
  items[#items + 1] = item
  at = item.events + 5 * item.count
end

if noticed == 'new' then
  tell_loss(run, src, time, acknowledged, incarnation, survived)
elseif survived < (tonumber(redis.call('HGET', META, 'lost_head')) or 0) then
  redis.call('HSET', META, 'lost_head', survived)
end

local reply, put_back = { 0, 0, 0 }, 0
local function put(from, count, writer)
  for i = from, from + 5 * (count - 1), 5 do
    local seq = add(run, writer, ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
    note(ARGV[i + 1], seq, ARGV[i + 2], ARGV[i + 4], KEYS[4])
  end
  put_back = put_back + count
end

for _, item in ipairs(items) do
  local first = run.head + 1
  if item.missing and item.kind == 'append' then
    for i = 1, #SUMS do
      if ARGV[item.at + i - 1] ~= '0' then
        redis.call('HINCRBY', META, SUMS[i], ARGV[item.at + i - 1])
      end
    end
    put(item.events, item.count, src)
  elseif item.missing then
    local id, name, args = ARGV[item.at + 1], ARGV[item.at + 2], ARGV[item.at + 3]
    if item.state then
      put(item.events + 5, item.count - 1, 'gateway')
      first = item.seq
    else
      redis.call('HINCRBY', META, 'tool_calls', 1)
      put(item.events, item.count, 'gateway')
    end
    local last = item.events + 5 * (item.count - 1)
    local line = { 'settled', args, '-', first, '-', '-', ARGV[item.events], ARGV[last], run.head }
    redis.call('HSET', CALLS, id, table.concat(line, ' '), id .. ':name', name, result_fields(id, ARGV[last + 4], run.head))
  end
  reply[#reply + 1] = item.missing and first or 0
  reply[#reply + 1] = item.missing and run.head or 0
end
if standing ~= 'repeat' then
  redis.call('HSET', META, field, epoch .. ' ' .. nonce .. ' ' .. n .. ' 0 0')
end
commit(run)
reply[1], reply[2], reply[3] = put_back, run.head, run.incarnation
return reply
