-- append: adds events at the head of a log, as one.
--
-- KEYS  meta, log, inbox
-- ARGV  channel, src, epoch, nonce, n, acknowledged, incarnation, "<seq> <id> …" of events of others that the producer
--       answers for and that no append of its own stands behind, guard,
--       turns, tool_calls, input_tokens, output_tokens, cached_input_tokens, cost_micro_usd,
--       prompts (increments),
--       then id, type, time, turn, data for each event
--       A producer gives nonce and n (from 1, one in flight); the operator gives a guard, which happens once. One is empty.
-- Reply {first seq, last seq, incarnation}, the same for a repeat; or {'LOST', head, incarnation}, and nothing is done: the
--       store has lost what this writer appended before, which restore puts back first
-- Errors STALE, CLOSED, ORDER
local src, epoch, nonce, n = ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local guard = ARGV[9]
local run = load_run()

if guard ~= '' then
  local once = redis.call('HGET', META, 'g:' .. guard)
  if once then
    if epoch > run.epoch then
      redis.call('HSET', META, 'epoch', epoch)
    end
    local first, last = string.match(once, '^(%d+) (%d+)$')
    return { tonumber(first), tonumber(last), run.incarnation }
  end
end

local refused = fence(run, epoch)
if refused then
  return refused
end

local field = 'g:' .. guard
local certain = false
if guard == '' then
  local standing, first, last
  standing, first, last, field = producer(run, src, epoch, nonce, n)
  if not standing then
    return first
  end
  local gone = replaced(ARGV[8])
  if standing == 'repeat' and not gone then
    return { first, last, run.incarnation }
  end
  certain = standing == 'lost' or gone
end
if run.closed then
  return closed(run)
end
if loss(run, tonumber(ARGV[6]), tonumber(ARGV[7]), certain) then
  return { 'LOST', run.head, run.incarnation }
end

local sums = { 'turns', 'tool_calls', 'input_tokens', 'output_tokens', 'cached_input_tokens', 'cost_micro_usd', 'prompts' }
for i = 1, #sums do
  if ARGV[9 + i] ~= '0' then
    redis.call('HINCRBY', META, sums[i], ARGV[9 + i])
  end
end
local first = nil
for i = 17, #ARGV, 5 do
  local seq = add(run, src, ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
  first = first or seq
  note(ARGV[i + 1], seq, ARGV[i + 2], ARGV[i + 4], KEYS[3])
end
first = first or run.head + 1
local standing = first .. ' ' .. run.head
if guard == '' then
  standing = epoch .. ' ' .. nonce .. ' ' .. n .. ' ' .. standing
end
commit(run, field, standing)
return { first, run.head, run.incarnation }
