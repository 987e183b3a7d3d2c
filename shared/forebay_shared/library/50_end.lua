-- The only way into a terminal state, and the dead letters.

local E = {}

function E.result(state, reason)
  return cjson.encode({state = state, reason = reason}) .. '\n'
end

-- Dead letters are bounded by count and bytes; the oldest go first, ledger counts stay.
function E.trim_dead(q, key)
  local limit = q.settings
  for _ = 1, 8 do
    local count = redis.call('XLEN', key)
    if count <= 1 then return end
    if count <= limit.dead_count and P.get(q, 'dead_bytes', 0) <= limit.dead_bytes then return end
    local oldest = redis.call('XRANGE', key, '-', '+', 'COUNT', 1)[1]
    P.add(q, 'dead_bytes', -(tonumber(P.flat(oldest[2]).size) or 0))
    redis.call('XDEL', key, oldest[1])
  end
end

function E.letter(q, reason, id, class, tenant, meta, head, body)
  local size = #head + #body
  P.add(q, 'dead_bytes', size)
  redis.call('XADD', K.dead(q), '*', 'id', id, 'reason', reason, 'class', class, 'tenant', tenant,
    'at', q.now, 'size', size, 'meta', meta, 'head', head, 'body', body)
  E.trim_dead(q, K.dead(q))
end

E.KEPT = {'flow_weight', 'timeout', 'wire', 'model', 'limit', 'estimate', 'stream', 'progress'}

function E.bury(q, record, reason)
  local entry = M.entry(record)
  local found = redis.call('XRANGE', record.queue, entry, entry)[1]
  local fields = found and P.flat(found[2]) or {}
  local meta = {}
  for _, name in ipairs(E.KEPT) do meta[name] = record[name] end
  E.letter(q, reason, record.id, record.class, record.tenant, cjson.encode(meta),
    fields.head or '', fields.body or '')
end

-- An id whose record is gone (evicted) leaves the indexes and the counts.
function E.forget_orphan(q, class, id, entry)
  if redis.call('EXISTS', K.request(q, id)) == 1 then return end
  if redis.call('ZREM', K.deadlines(q), id) == 0 then return end -- it was none of ours that lives
  local suspect = M.suspect(string.match(entry, '^%d+'), id)
  local queued = redis.call('ZREM', K.waiting(q, class), id) + redis.call('ZREM', K.delayed(q), id)
    + redis.call('ZREM', K.suspects(q, class), suspect)
  if queued == 0 then redis.call('ZREM', K.leases(q), id) end
  local what = queued > 0 and 'queued' or 'running'
  P.add(q, what, -1)
  P.add(q, what .. ':' .. class, -1)
  redis.call('HINCRBY', K.ledger(q), 'dead', 1)
end

-- An entry that is not ours or cannot be read: into the dead letters, counted apart.
function E.bury_foreign(q, queue, class, tenant, entry, fields)
  local raw = {}
  for i = 1, #fields do raw[i] = fields[i] end
  E.letter(q, 'undecodable', '', class, tenant, '', '', string.sub(table.concat(raw, '\n'), 1, 65536))
  redis.call('HINCRBY', K.ledger(q), 'undecodable', 1)
  redis.pcall('XACK', queue, P.GROUP, entry)
  redis.call('XDEL', queue, entry)
  local id = P.flat(fields).id
  if id then E.forget_orphan(q, class, id, entry) end
  M.recount(q, {class = class, flow = class .. ':' .. tenant, queue = queue})
end

-- The stream goes with its last entry, and with it groups, consumers and the flow.
function E.drop_empty(q, queue, flow)
  if redis.call('XLEN', queue) > 0 then return false end
  redis.call('DEL', queue)
  redis.call('ZREM', K.flows(q), flow)
  local class = string.match(flow, '^[^:]*')
  if redis.call('ZREM', K.depth(q, class), flow) + redis.call('ZREM', K.returned(q, class), flow) > 0 then
    M.drop_bytes(q, class, flow)
    F.close_flow(q, class, flow)
  end
  return true
end

function E.forget_flow(q, record)
  local tag = tonumber(redis.call('ZSCORE', K.tags(q, record.class), record.flow))
  if tag and tag <= P.get(q, 'v:' .. record.class, 0) then
    redis.call('ZREM', K.tags(q, record.class), record.flow)
  end
end

-- Whether a repeat of the request would end in the same way: then its Idempotency-Key is kept.
function E.is_final(state, result)
  if state == 'done' then return true end
  if state ~= 'failed' then return false end
  local decoded, head = pcall(cjson.decode, string.match(result, '^[^\n]*'))
  if not decoded or type(head) ~= 'table' then return false end
  local status = tonumber(head.status) or 0
  return head.reason == 'result_too_large' or (status >= 400 and status < 500)
end

function E.remember(q, record, state, result)
  if record.idempotency == '' then return end
  local key = K.idempotency(q, record.idempotency)
  if E.is_final(state, result) then
    redis.call('PEXPIRE', key, q.settings.idempotency_ttl_ms)
  else
    redis.call('DEL', key)
  end
end

-- The end mark is the last entry of the output: its state and how many chunks there are.
function E.close_output(q, record, state)
  if record.stream ~= '1' and tonumber(record.offset) == 0 then return end
  local key = K.output(q, record.id)
  redis.call('DEL', K.prompt(q, record.id))
  redis.call('XADD', key, P.text(record.offset + 1) .. '-0', 'end', state, 'offset', record.offset)
  redis.call('PEXPIRE', key, q.settings.result_ttl_ms)
end

-- Ends a live request: result, record, ledger, indexes, settlement, row and entry, the empty stream,
-- the worker's empty consumer, idempotency, watchers. `result` is the stored string.
function E.finish(q, record, state, result)
  local entry, worker = M.entry(record), ''
  if state == 'dead' then E.bury(q, record, record.reason) end
  redis.pcall('XACK', record.queue, P.GROUP, entry)
  local intact = redis.call('XDEL', record.queue, entry) == 1
  if record.state == 'running' then
    worker = M.leave_running(q, record)
    F.settle(q, record, tonumber(record.used))
  else
    M.leave_place(q, record, intact)
  end
  redis.call('ZREM', K.deadlines(q), record.id)
  if E.drop_empty(q, record.queue, record.flow) then
    E.forget_flow(q, record)
  else
    M.tidy_consumer(q, record, worker)
  end
  E.close_output(q, record, state)
  E.remember(q, record, state, result)
  E.store(q, record, state, result)
  F.rest(q, record.class)
  M.notify(q, record)
end

function E.store(q, record, state, result)
  record.state, record.place, record.ended = state, '', q.now
  redis.call('SET', K.result(q, record.id), result, 'PX', q.settings.result_ttl_ms)
  M.save(q, record, 'state', 'place', 'lease', 'ended', 'charged', 'used', 'attempts', 'crashes',
    'solos', 'offset', 'output', 'reason')
  redis.call('PEXPIRE', K.request(q, record.id), q.settings.result_ttl_ms + q.settings.tombstone_ms)
  redis.call('HINCRBY', K.ledger(q), state, 1)
end

-- An end that the library itself decides; a worker that runs the request is told to stop.
function E.close(q, record, state, reason)
  if record.state == 'running' then
    local worker, call = string.match(record.lease, '^(.*)/(%d+)$')
    if worker then M.order(q, worker, 'cancel ' .. record.id .. ' ' .. call) end
  end
  record.reason = reason
  E.finish(q, record, state, E.result(state, reason))
end
