-- admit: limits, booking of returns, shedding, and the first write, XADD.

local A = {}

function A.read(r)
  local one = {}
  one.id, one.class, one.tenant = P.word(r), P.word(r), P.word(r)
  one.weight, one.timeout, one.wire = P.number(r), P.number(r), P.number(r)
  one.model, one.limit, one.estimate = P.word(r), P.number(r), P.number(r)
  one.stream, one.progress = P.number(r), P.number(r)
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
function A.known(q, one)
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
  return {'same', id, state}
end

-- Booked returns -----------------------------------------------------------------------------------
-- A limit B in use by `backlog` empties at rate mu. Who is refused is booked behind those booked
-- before: booked := max(booked, now + (backlog - kept B)/mu) + cost/mu. A share of B is kept for
-- those who were refused, so that their return succeeds.

function A.is_returner(q, limit, one)
  if one.fingerprint == '' then return false end
  local due = tonumber(redis.call('ZSCORE', K.refused(q, limit), one.fingerprint))
  return due ~= nil and due >= q.now - 30000
end

function A.kept(q, limit, bound)
  local waiting = redis.call('ZCOUNT', K.refused(q, limit), q.now - 30000, '+inf')
  return math.min(math.floor(bound * q.settings.kept_share), waiting)
end

function A.book(q, limit, one, backlog, bound, cost)
  local key, clamp = K.refused(q, limit), q.settings.retry_clamp_ms
  local known = one.fingerprint ~= '' and tonumber(redis.call('ZSCORE', key, one.fingerprint))
  if known and known > q.now then return known - q.now end
  local rate, field = F.drain_rate(q, limit), 'booked:' .. limit
  local target = bound * (1 - q.settings.kept_share)
  local wait = rate > 0 and math.max(0, backlog - target) / rate or clamp
  local booked = math.max(P.get(q, field, 0), q.now + wait) + (rate > 0 and cost / rate or 0)
  booked = math.ceil(math.min(booked, q.now + clamp))
  P.set(q, field, booked)
  if one.fingerprint ~= '' then
    redis.call('ZADD', key, booked, one.fingerprint)
    redis.call('ZREMRANGEBYSCORE', key, '-inf', q.now - 30001)
    redis.call('ZREMRANGEBYRANK', key, 0, -10001)
    redis.call('PEXPIRE', key, clamp + 60000)
  end
  return booked - q.now
end

-- A token bucket of one minute's worth in the tenant's hash: 0 and how much is left, or the ms to wait.
function A.bucket(q, tenant, field, per_minute, cost)
  local known = redis.call('HMGET', K.limits(q, tenant), field, field .. '_at')
  local level, at = tonumber(known[1]) or per_minute, tonumber(known[2]) or q.now
  level = math.min(per_minute, level + math.max(0, q.now - at) * per_minute / 60000)
  local need = math.min(cost, per_minute)
  if level >= need then return 0, level - cost end
  return math.ceil((need - level) * 60000 / per_minute), level
end

function A.spend(q, one, field, level)
  redis.call('HSET', K.limits(q, one.tenant), field, level, field .. '_at', q.now)
  redis.call('PEXPIRE', K.limits(q, one.tenant), 3600000)
end

-- Limits of the tenant; a refusal spends nothing. `one.spending` is written after the XADD.
function A.tenant_refusal(q, one)
  one.spending = {}
  local rates = {{'requests', one.per_minute, 1}, {'tokens', one.tokens_per_minute, one.expected}}
  for _, rate in ipairs(rates) do
    if rate[2] > 0 then
      local wait, level = A.bucket(q, one.tenant, rate[1], rate[2], rate[3])
      if wait > 0 then return {'tenant', 'tenant:' .. rate[1], wait, ''} end
      one.spending[rate[1]] = level
    end
  end
  return A.tenant_full(q, one)
end

-- Depth and bytes of the tenant. Its drain is taken as its class's: a rate per tenant would grow
-- with the number of tenants.
function A.tenant_full(q, one)
  local depth = tonumber(redis.call('ZSCORE', K.depth(q, one.class), one.flow)) or 0
  if one.most > 0 and depth + 1 > one.most then
    return {'tenant', 'tenant:depth', A.tenant_wait(q, one), ''}
  end
  local bytes = 0
  for _, class in ipairs(q.settings.classes) do
    local flow = class.name .. ':' .. one.tenant
    bytes = bytes + (tonumber(redis.call('ZSCORE', K.sizes(q, class.name), flow)) or 0)
  end
  local most = one.most_bytes > 0 and one.most_bytes or q.settings.tenant_bytes
  if bytes + one.bytes > most then
    return {'tenant', 'tenant:bytes', A.tenant_wait(q, one), ''}
  end
end

function A.tenant_wait(q, one)
  local rate = F.drain_rate(q, 'class:' .. one.class)
  local wait = rate > 0 and 1 / rate or q.settings.retry_clamp_ms
  return math.ceil(math.min(q.settings.retry_clamp_ms, math.max(1000, wait)))
end

-- Depth of class and pool. At a full pool a lower class may give a place.
function A.depth_refusal(q, one)
  local class = P.class_of(q, one.class)
  local name, queued = 'class:' .. one.class, P.get(q, 'queued:' .. one.class, 0)
  local kept = A.is_returner(q, name, one) and 0 or A.kept(q, name, class.depth)
  if queued + 1 > class.depth - kept then
    return {'full', name, A.book(q, name, one, queued, class.depth, 1), ''}
  end
  queued = P.get(q, 'queued', 0)
  kept = A.is_returner(q, 'pool', one) and 0 or A.kept(q, 'pool', q.settings.depth)
  if queued + 1 <= q.settings.depth - kept then return nil end
  one.victims = A.victims(q, class, queued + 1 - (q.settings.depth - kept))
  if one.victims then return nil end
  return {'full', 'pool', A.book(q, 'pool', one, queued, q.settings.depth, 1), ''}
end

-- Up to 8 never-taken requests of classes below: lowest class, longest flow, its newest. All that are
-- needed, or nil.
function A.victims(q, class, needed)
  if needed > 8 then return nil end
  local list = {}
  for rank = #q.settings.classes, class.rank + 1, -1 do
    local name = q.settings.classes[rank].name
    local flow = redis.call('ZREVRANGE', K.depth(q, name), 0, 0)[1]
    if flow then A.newest(q, flow, needed, list) end
    if #list >= needed then return list end
  end
  return nil
end

function A.newest(q, flow, needed, list)
  for _, entry in ipairs(redis.call('XREVRANGE', K.queue(q, flow, 0), '+', '-', 'COUNT', 8)) do
    if #list >= needed then return end
    local id = P.flat(entry[2]).id
    local record = id and M.load(q, id)
    if record and record.place == 'waiting' and M.entry(record) == entry[1] then
      list[#list + 1] = record
    end
  end
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
    'stream', one.stream, 'progress', one.progress, 'bytes', one.bytes, 'timeout', one.timeout,
    'flow_weight', one.weight, 'weight', 1, 'charged', 0, 'used', 0, 'takes', 0, 'attempts', 0,
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
  redis.call('ZINCRBY', K.depth(q, one.class), 1, one.flow)
  redis.call('ZINCRBY', K.sizes(q, one.class), one.bytes, one.flow)
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

function A.settle_admission(q, one)
  for field, level in pairs(one.spending or {}) do A.spend(q, one, field, level) end
  if one.fingerprint ~= '' then
    redis.call('ZREM', K.refused(q, 'class:' .. one.class), one.fingerprint)
    redis.call('ZREM', K.refused(q, 'pool'), one.fingerprint)
  end
end

function A.one(q, one, inbox)
  local answer = A.known(q, one)
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
--   stream 0/1, progress 0/1, idempotency hash, fingerprint, most queued (0 none), most bytes (0
--   pool's), requests per minute (0 none), tokens per minute (0 none), head, body.
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
