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
-- A limit is {name, what is answered, bound B, backlog, cost of this request in its unit, rate at which
-- it empties per ms}. Who is refused is booked behind those booked before:
--   booked := max(booked, now + (backlog - target)/rate) + cost/rate,  at most one clamp ahead.
-- A share of a depth is kept for those who were refused, so that their return succeeds; the target is
-- the depth without that share. Only Retry-After comes from `booked`, never a refusal.

function A.is_returner(q, limit, one)
  if one.fingerprint == '' then return false end
  local due = tonumber(redis.call('ZSCORE', K.refused(q, limit.name), one.fingerprint))
  return due ~= nil and due >= q.now - 30000
end

function A.kept(q, limit, one)
  local waiting = redis.call('ZCOUNT', K.refused(q, limit.name), q.now - 30000, '+inf')
  if waiting == 0 or A.is_returner(q, limit, one) then return 0 end
  return math.min(math.floor(limit.bound * q.settings.kept_share), waiting)
end

-- `booked` of class and pool is in the clock, of a tenant in its own hash: no tenant grows the clock.
function A.booked(q, limit)
  if not limit.tenant then return P.get(q, 'booked:' .. limit.name, 0) end
  return tonumber(redis.call('HGET', K.limits(q, limit.tenant), 'booked:' .. limit.name)) or 0
end

function A.set_booked(q, limit, value)
  if not limit.tenant then return P.set(q, 'booked:' .. limit.name, value) end
  redis.call('HSET', K.limits(q, limit.tenant), 'booked:' .. limit.name, value)
  redis.call('PEXPIRE', K.limits(q, limit.tenant), 3600000)
end

function A.note_refused(q, limit, one, booked)
  if one.fingerprint == '' then return end
  local key = K.refused(q, limit.name)
  redis.call('ZADD', key, booked, one.fingerprint)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', q.now - 30001)
  redis.call('ZREMRANGEBYRANK', key, 0, -10001)
  redis.call('PEXPIRE', key, q.settings.retry_clamp_ms + 60000)
end

-- The refusal with its booked return; a client that comes too early keeps its booking.
function A.refuse(q, limit, one)
  local answer = {limit.reason, limit.says, 0, ''}
  local known = one.fingerprint ~= ''
    and tonumber(redis.call('ZSCORE', K.refused(q, limit.name), one.fingerprint))
  if known and known > q.now then
    answer[3] = known - q.now
    return answer
  end
  local clamp, rate = q.settings.retry_clamp_ms, limit.rate
  local wait = rate > 0 and math.max(0, limit.backlog - limit.target) / rate or clamp
  local booked = math.max(A.booked(q, limit), q.now + wait) + (rate > 0 and limit.cost / rate or 0)
  booked = math.ceil(math.min(booked, q.now + clamp))
  A.set_booked(q, limit, booked)
  A.note_refused(q, limit, one, booked)
  answer[3] = booked - q.now
  return answer
end

-- Limits of the tenant -----------------------------------------------------------------------------

-- A token bucket of one minute's worth: what is in it now.
function A.bucket(q, tenant, field, per_minute)
  local known = redis.call('HMGET', K.limits(q, tenant), field, field .. '_at')
  local level, at = tonumber(known[1]) or per_minute, tonumber(known[2]) or q.now
  return math.min(per_minute, level + math.max(0, q.now - at) * per_minute / 60000)
end

function A.spend(q, one, field, level)
  redis.call('HSET', K.limits(q, one.tenant), field, level, field .. '_at', q.now)
  redis.call('PEXPIRE', K.limits(q, one.tenant), 3600000)
end

function A.tenant_limit(one, what, bound, backlog, cost, rate)
  return {name = 'tenant:' .. one.tenant .. ':' .. what, says = 'tenant:' .. what, reason = 'tenant',
    tenant = one.tenant, bound = bound, backlog = backlog, target = bound, cost = cost, rate = rate}
end

-- A rate: refused while the bucket holds less than the cost (or than a full bucket). The backlog is what
-- is missing. `one.spending` is written after the XADD, so that a refusal spends nothing.
function A.rate_refusal(q, one, what, per_minute, cost)
  if per_minute <= 0 then return nil end
  local level, need = A.bucket(q, one.tenant, what, per_minute), math.min(cost, per_minute)
  one.spending[what] = level - cost
  if level >= need then return nil end
  local limit = A.tenant_limit(one, what, 0, -level, need, per_minute / 60000)
  limit.target = 0
  return A.refuse(q, limit, one)
end

-- Depth and bytes of the tenant. Its drain is taken as its class's: a rate per tenant would grow
-- with the number of tenants.
function A.share_refusal(q, one, what, bound, used, cost, rate)
  local limit = A.tenant_limit(one, what, bound, used, cost, rate)
  if used + cost <= bound - A.kept(q, limit, one) then return nil end
  limit.target = bound * (1 - q.settings.kept_share)
  return A.refuse(q, limit, one)
end

function A.tenant_bytes(q, one)
  local bytes = 0
  for _, class in ipairs(q.settings.classes) do
    local flow = class.name .. ':' .. one.tenant
    bytes = bytes + (tonumber(redis.call('ZSCORE', K.sizes(q, class.name), flow)) or 0)
  end
  return bytes
end

function A.tenant_refusal(q, one)
  one.spending = {}
  local answer = A.rate_refusal(q, one, 'requests', one.per_minute, 1)
    or A.rate_refusal(q, one, 'tokens', one.tokens_per_minute, one.expected)
  if answer then return answer end
  local rate = F.drain_rate(q, 'class:' .. one.class)
  local depth = tonumber(redis.call('ZSCORE', K.depth(q, one.class), one.flow)) or 0
  if one.most > 0 then
    answer = A.share_refusal(q, one, 'depth', one.most, depth, 1, rate)
    if answer then return answer end
  end
  local bytes, most = A.tenant_bytes(q, one), one.most_bytes
  if most <= 0 then most = q.settings.tenant_bytes end
  local mean = depth > 0 and bytes / depth or one.bytes
  return A.share_refusal(q, one, 'bytes', most, bytes, one.bytes, rate * mean)
end

-- Depth of class and pool --------------------------------------------------------------------------

function A.depth_limit(q, name, bound, backlog)
  return {name = name, says = name, reason = 'full', bound = bound, backlog = backlog, cost = 1,
    target = bound * (1 - q.settings.kept_share), rate = F.drain_rate(q, name)}
end

-- At a full pool a lower class may give a place.
function A.depth_refusal(q, one)
  local class = P.class_of(q, one.class)
  local limit = A.depth_limit(q, 'class:' .. one.class, class.depth,
    P.get(q, 'queued:' .. one.class, 0))
  if limit.backlog + 1 > limit.bound - A.kept(q, limit, one) then return A.refuse(q, limit, one) end
  limit = A.depth_limit(q, 'pool', q.settings.depth, P.get(q, 'queued', 0))
  local over = limit.backlog + 1 - (limit.bound - A.kept(q, limit, one))
  if over <= 0 then return nil end
  one.victims = A.victims(q, class, over)
  return not one.victims and A.refuse(q, limit, one) or nil
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
  if one.fingerprint == '' then return end
  local tenant = 'tenant:' .. one.tenant .. ':'
  for _, limit in ipairs({'class:' .. one.class, 'pool', tenant .. 'depth', tenant .. 'bytes',
    tenant .. 'requests', tenant .. 'tokens'}) do
    redis.call('ZREM', K.refused(q, limit), one.fingerprint)
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
