-- admit: what is known already, refused, or stored; the first write is XADD.

function A.read(r)
  local one = {}
  one.id, one.class, one.tenant = P.word(r), P.word(r), P.word(r)
  one.weight, one.timeout, one.wire = P.number(r), P.number(r), P.number(r)
  one.model, one.limit, one.estimate = P.word(r), P.number(r), P.number(r)
  one.stream, one.progress, one.detached = P.number(r), P.number(r), P.number(r)
  one.idempotency, one.fingerprint = P.word(r), P.word(r)
  one.most, one.most_bytes = P.number(r), P.number(r)
  one.per_minute, one.tokens_per_minute = P.number(r), P.number(r)
  one.head, one.body = P.word(r), P.word(r)
  if one.weight <= 0 then r.bad = r.bad or 'a weight is not above 0' end
  if one.id == '' or one.tenant == '' then r.bad = r.bad or 'an id or tenant is empty' end
  one.flow = one.class .. ':' .. one.tenant
  one.bytes = #one.head + #one.body
  return one
end

-- The same id, or the same Idempotency-Key of the same tenant: the first answer again.
function A.known(q, one, inbox)
  local state = redis.call('HGET', K.request(q, one.id), 'state')
  if state then return {'same', one.id, state} end
  if one.idempotency == '' then return nil end
  local value = redis.call('GET', K.idempotency(q, one.tenant .. ':' .. one.idempotency))
  if not value then return nil end
  local id, fingerprint = string.match(value, '^([^|]*)|(.*)$')
  if fingerprint ~= one.fingerprint then return {'conflict', '', 0, id or ''} end
  state = redis.call('HGET', K.request(q, id), 'state')
  if not state then return {'gone', '', 0, id} end
  if P.TERMINAL[state] and redis.call('EXISTS', K.result(q, id)) == 0 then
    return {'gone', '', 0, id}
  end
  if not P.TERMINAL[state] then A.join(q, one, id, inbox) end
  return {'same', id, state}
end

-- Who repeats a live request reads it along from this very step on.
function A.join(q, one, id, inbox)
  if one.detached == 1 then redis.call('HSET', K.request(q, id), 'detached', 1) end
  if inbox == '' then return end
  M.watch(q, id, redis.call('HGET', K.request(q, id), 'watchers'), inbox)
end

-- Entry numbers are the pool's own; where something foreign put a larger id, they jump past it.
function A.append(q, one, queue)
  local number = P.get(q, 'n', 0) + 1
  for _ = 1, 2 do
    local done = redis.pcall('XADD', queue, P.text(number) .. '-0', 'id', one.id,
      'wire', one.wire, 'head', one.head, 'body', one.body)
    if not done.err then
      P.set(q, 'n', number)
      return number
    end
    local last = P.flat(redis.call('XINFO', 'STREAM', queue))['last-generated-id']
    number = (tonumber(string.match(last, '^(%d+)')) or 0) + 1
    if number > 9e15 then return nil end
  end
end

function A.record(q, one, inbox, entry)
  redis.call('HSET', K.request(q, one.id), 'state', 'queued', 'place', 'waiting',
    'class', one.class, 'tenant', one.tenant, 'bucket', 0, 'entry', entry, 'lease', '',
    'wire', one.wire, 'model', one.model, 'limit', one.limit, 'estimate', one.estimate,
    'stream', one.stream, 'progress', one.progress, 'detached', one.detached, 'bytes', one.bytes,
    'timeout', one.timeout, 'flow_weight', one.weight, 'weight', 1, 'charged', 0, 'used', 0, 'takes', 0, 'attempts', 0,
    'crashes', 0, 'solos', 0, 'solo', 0, 'offset', 0, 'output', 0, 'watchers', inbox,
    'admitted', q.now, 'taken', 0, 'ended', 0, 'deadline', q.now + one.timeout, 'reason', '',
    'idempotency', one.idempotency ~= '' and one.tenant .. ':' .. one.idempotency or '')
end

function A.store(q, one, inbox)
  local queue = K.queue(q, one.flow, 0)
  local fresh = redis.call('EXISTS', queue) == 0
  local entry = A.append(q, one, queue)
  if not entry then return false end
  if fresh then
    redis.call('XGROUP', 'CREATE', queue, P.GROUP, '0')
    redis.call('ZADD', K.flows(q), 0, one.flow)
  end
  A.record(q, one, inbox, entry)
  redis.call('ZADD', K.waiting(q, one.class), entry, one.id)
  redis.call('ZADD', K.deadlines(q), q.now + one.timeout, one.id)
  M.count_waiting(q, one, 1)
  P.add(q, 'queued', 1)
  P.add(q, 'queued:' .. one.class, 1)
  F.open_flow(q, one.class, one.flow)
  redis.call('HINCRBY', K.ledger(q), 'accepted', 1)
  if one.idempotency ~= '' then
    redis.call('SET', K.idempotency(q, one.tenant .. ':' .. one.idempotency),
      one.id .. '|' .. one.fingerprint)
  end
  M.ring(q, one.class)
  return true
end

-- A returner is forgotten. Without a booking of a limit, or a hash of the tenant, none was refused.
function A.forget_refused(q, one)
  for _, limit in ipairs({'class:' .. one.class, 'pool'}) do
    if q.clock['booked:' .. limit] then
      redis.call('ZREM', K.refused(q, limit), one.fingerprint)
    end
  end
  if redis.call('EXISTS', K.limits(q, one.tenant)) == 0 then return end
  for _, what in ipairs({'depth', 'bytes', 'requests', 'tokens'}) do
    redis.call('ZREM', K.refused(q, 'tenant:' .. one.tenant .. ':' .. what), one.fingerprint)
  end
end

function A.settle_admission(q, one)
  for field, level in pairs(one.spending) do A.spend(q, one, field, level) end
  if one.fingerprint ~= '' then A.forget_refused(q, one) end
end

function A.one(q, one, inbox)
  local answer = A.known(q, one, inbox)
  if answer then return answer end
  if not P.class_of(q, one.class) then return {'class', one.class, 0, ''} end
  if q.clock.draining == '1' then return {'draining', 'pool', 5000, ''} end
  one.expected = one.tokens_per_minute > 0 and F.estimate(q, one) or 0
  answer = A.tenant_refusal(q, one) or A.depth_refusal(q, one)
  if answer then return answer end
  if not A.store(q, one, inbox) then return {'full', 'foreign', q.settings.retry_clamp_ms, ''} end
  for _, victim in ipairs(one.victims or {}) do E.close(q, victim, 'shed', 'shed') end
  A.settle_admission(q, one)
  return {'new', one.id, 'queued'}
end

-- admit(inbox, n, n x item)
-- Guarantee: each request is stored whole, once, or not at all; by id and by Idempotency-Key a
--   repeat gets the first answer. A refusal uses no budget and no depth; it names the limit and the
--   time, and books the return. At a full pool never-taken requests of lower classes give way (<= 8).
-- KEYS: layout, never.
-- ARGV: inbox that watches (or empty), n, then per item: id, class, tenant, flow weight, timeout ms,
--   wire version, model, output limit (-1 none named, 0 no output), output estimate (-1 learn),
--   stream 0/1, progress 0/1, detached 0/1 (goes on without readers), idempotency hash, fingerprint,
--   most queued (0 none), most bytes (0 pool's), requests per minute (0 none), tokens per minute (0 none), head, body.
-- Returns: per item {'new' | 'same', id, state}, or {reason, limit, retry after ms, earlier id} with
--   reason 'full', 'tenant', 'draining', 'conflict', 'gone' or 'class'.
-- Flags: none, so that Redis refuses it whole at maxmemory.
local function admit(keys, args)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  local r = P.reader(args)
  local inbox = P.word(r)
  local items = P.items(r, A.read)
  wrong = P.refuse(r)
  if wrong then return wrong end
  local answers = {}
  for i, one in ipairs(items) do answers[i] = A.one(q, one, inbox) end
  P.close(q)
  return answers
end

redis.register_function{function_name = 'forebay_admit_@HASH@', callback = admit}
