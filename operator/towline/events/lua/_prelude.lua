-- Put in front of every script by store.py: how a change of a run reads its state, is fenced, and appends.
--
-- Every script: KEYS[1] = meta, KEYS[2] = log, ARGV[1] = the run's notify channel. All keys share the run's hash tag.
-- Data is passed through verbatim, never encoded again (cjson turns [] into {}).
-- Errors, by their first word:
--   STALE <current> <given>   a higher epoch owns the run
--   CLOSED <type>             the log has its terminal event
local META, LOG, CHANNEL = KEYS[1], KEYS[2], ARGV[1]
-- Before an event's id, the key of its large data: not among KEYS, but in the run's slot like them.
local BLOB = string.sub(META, 1, -5) .. 'blob:'

local function load_run()
  local v = redis.call('HMGET', META, 'epoch', 'head', 'incarnation', 'closed', 'cancel')
  return {
    epoch = tonumber(v[1]) or 0,
    head = tonumber(v[2]) or 0,
    incarnation = tonumber(v[3]) or 1,
    closed = v[4],
    cancel = v[5],
  }
end

-- A lower epoch is refused with the error returned; a higher one is stored, which also heals a raise lost in a failover.
local function fence(run, epoch)
  if epoch < run.epoch then
    return redis.error_reply('STALE ' .. run.epoch .. ' ' .. epoch)
  end
  if epoch > run.epoch then
    run.epoch = epoch
    redis.call('HSET', META, 'epoch', epoch)
  end
  return nil
end

local function closed(run)
  return redis.error_reply('CLOSED ' .. run.closed)
end

local function last_id()
  if redis.call('EXISTS', LOG) == 0 then
    return 0
  end
  local info = redis.call('XINFO', 'STREAM', LOG)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
      return tonumber(string.match(info[i + 1], '^%d+'))
    end
  end
end

-- Adds one entry at the next seq, which is returned. Nothing is announced before commit().
local function add(run, src, id, kind, time, turn, data)
  local function xadd(attempt, seq)
    local epoch = run.epoch
    return attempt('XADD', LOG, seq .. '-0', 'id', id, 'type', kind, 'time', time, 'src', src, 'epoch', epoch, 'turn', turn, 'data', data)
  end
  local seq = run.head + 1
  local reply = xadd(redis.pcall, seq)
  if type(reply) == 'table' and reply.err then
    -- The log may be ahead of meta (a half-lost pair): the larger of both is the head. Any other cause fails again here.
    seq = math.max(run.head, last_id()) + 1
    xadd(redis.call, seq)
  end
  run.head = seq
  if string.sub(data, 1, 9) == '{"blob":"' then
    redis.call('PERSIST', BLOB .. id) -- written before under a time to live, see blobs.py
  end
  if string.match(kind, '^run%.') or string.match(kind, '^sandbox%.') or kind == 'harness.lost' then
    -- A lifecycle event: the namespace's feed, which is in another slot, is still to get it.
    local unfed = redis.call('HGET', META, 'unfed')
    redis.call('HSET', META, 'unfed', unfed and unfed .. ' ' .. seq or seq)
  end
  return seq
end

-- Stores the head, with more fields of meta if given, and announces it.
local function commit(run, ...)
  redis.call('HSET', META, 'head', run.head, ...)
  redis.call('PUBLISH', CHANNEL, 'log:' .. run.head)
end

-- What meta keeps of an event that append adds, so that nobody has to fold the log for it: where the run last made
-- progress, since when it waits, where its history begins; and the inbox knows every prompt that the log has taken, also
-- one whose entry a failover lost.
local PROGRESS = {
  ['turn.started'] = true,
  ['agent.message'] = true,
  ['agent.tool_use'] = true,
  ['agent.tool_result'] = true,
  ['turn.completed'] = true,
  ['context.compacted'] = true,
}

-- A prompt that a turn took is known by its key also where a failover has lost its entry, so that a repeat of its poster
-- is no second prompt; and one that was given its number since then gets a number of its own.
local function take(INBOX, n, key)
  if not key or key == '' then
    return
  end
  local entry = redis.call('XRANGE', INBOX, n .. '-0', n .. '-0')[1]
  local other = entry and entry[2][8]
  if other and other ~= key then
    local next = redis.call('HINCRBY', META, 'inbox_head', 1)
    redis.call('XADD', INBOX, next .. '-0', unpack(entry[2]))
    redis.call('XDEL', INBOX, n .. '-0')
    redis.call('HSET', META, 'i:' .. other, next)
    redis.call('PUBLISH', CHANNEL, 'inbox')
  end
  redis.call('HSET', META, 'i:' .. key, n)
end

local function note(kind, seq, time, data, INBOX)
  if PROGRESS[kind] then
    redis.call('HSET', META, 'progress', seq)
  end
  if kind == 'turn.waiting' then
    redis.call('HSET', META, 'waiting', time)
    redis.call('PUBLISH', CHANNEL, 'waiting')
  elseif kind == 'turn.started' then
    redis.call('HDEL', META, 'waiting')
  elseif kind == 'context.compacted' then
    redis.call('HSET', META, 'compacted', seq)
  end
  local taken = string.match(data, '^{"prompt_ids?":%[?"(%d+)%-0"')
  if taken and tonumber(taken) > (tonumber(redis.call('HGET', META, 'inbox_head')) or 0) then
    redis.call('HSET', META, 'inbox_head', taken)
  end
  if taken and kind == 'user.message' then
    take(INBOX, taken, cjson.decode(data).key)
  end
end

-- The fields of the ledger that keep a call's result, when its event stands at `seq` of the log: a large one stands there
-- only, the call's line says where.
local function result_fields(call_id, data, seq)
  if seq ~= '-' and #data > 1024 then
    return call_id .. ':result', ''
  end
  return call_id .. ':result', data
end

local function id_from(text)
  return 'ev_' .. string.sub(redis.sha1hex(text), 1, 20)
end

-- Where a producer (src, epoch, nonce) stands with its n-th append. Returns one of
--   'next'                 append it
--   'repeat', first, last  it is in the log already
--   'lost'                 the store has forgotten appends that it confirmed
--   nil, error             STALE: another process writes under this epoch; ORDER <expected n>: a mistake of the caller
-- A harness is one process per epoch. Other sources may be many processes, told apart by their nonce.
local function producer(run, src, epoch, nonce, n)
  local field = 'p:' .. src
  if src ~= 'harness' then
    field = field .. ':' .. nonce
  end
  local stored = redis.call('HGET', META, field)
  local last, first_seq, last_seq = 0, 0, 0
  if stored then
    local e, owner, k, first, final = string.match(stored, '^(%d+) (%S+) (%d+) (%d+) (%d+)$')
    if owner == nonce then
      last, first_seq, last_seq = tonumber(k), tonumber(first), tonumber(final)
    elseif tonumber(e) >= epoch then
      return nil, redis.error_reply('STALE ' .. run.epoch .. ' ' .. epoch), field
    end
  end
  if n == last and n > 0 then
    return 'repeat', first_seq, last_seq, field
  end
  if n < last + 1 then
    return nil, redis.error_reply('ORDER ' .. (last + 1)), field
  end
  if n > last + 1 then
    return 'lost', nil, nil, field
  end
  return 'next', nil, nil, field
end

-- Whether one of the events, "<seq> <id> …", no longer stands at its seq. That there is an event says nothing: others may
-- have filled the log again since a loss.
local function replaced(events)
  for seq, id in string.gmatch(events, '(%d+) (%S+)') do
    local entry = redis.call('XRANGE', LOG, seq .. '-0', seq .. '-0')[1]
    if not entry or entry[2][2] ~= id then
      return true
    end
  end
  return false
end

-- Whether the store lost a tail that this writer had seen confirmed up to `acknowledged` under `incarnation` (0: it saw
-- nothing yet), or that is `certain` for another reason: 'told' when somebody has logged that, 'new' when nobody has.
local function loss(run, acknowledged, incarnation, certain)
  if incarnation > 0 and incarnation < run.incarnation then
    return 'told'
  end
  if certain or incarnation > run.incarnation then
    return 'new'
  end
  if acknowledged > run.head then
    run.head = math.max(run.head, last_id())
  end
  return acknowledged > run.head and 'new' or nil
end

-- Begins a new incarnation behind `survived`, the last seq that is still what it was, and logs that. Returns the reply
-- {'LOST', head, incarnation}, upon which the harness puts back what is missing (restore).
local function tell_loss(run, src, time, acknowledged, incarnation, survived)
  run.incarnation = math.max(run.incarnation, incarnation) + 1
  local data = '{"head":' .. survived .. ',"acknowledged":' .. acknowledged .. ',"incarnation":' .. run.incarnation .. '}'
  run.head = math.max(run.head, last_id())
  add(run, src, id_from(META .. ' lost ' .. run.incarnation .. ' ' .. survived), 'store.lost', time, '', data)
  commit(run, 'incarnation', run.incarnation, 'lost_head', survived)
  redis.call('PUBLISH', CHANNEL, 'lost:' .. run.incarnation)
  return { 'LOST', run.head, run.incarnation }
end

