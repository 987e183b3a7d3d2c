-- Limits: who is refused, until when, and who gives way.

local A = {}

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
  local wait = rate > 0 and math.max(limit.least or 0, limit.backlog - limit.target) / rate or clamp
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
  limit.target, limit.least = 0, -need -- what is there already shortens the wait
  return A.refuse(q, limit, one)
end

-- Whether `backlog` + cost fits, for a newcomer less the share that is kept for returners.
function A.fits(q, limit, one)
  local after = limit.backlog + limit.cost
  if after <= limit.bound - math.floor(limit.bound * q.settings.kept_share) then return true end
  return after <= limit.bound - A.kept(q, limit, one)
end

-- Depth and bytes of the tenant. Its drain is taken as its class's: a rate per tenant would grow
-- with the number of tenants.
function A.tenant_share(q, one, what, bound, used, cost, rate)
  local limit = A.tenant_limit(one, what, bound, used, cost, rate)
  if A.fits(q, limit, one) then return nil end
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

function A.tenant_depth(q, one)
  return tonumber(redis.call('ZSCORE', K.depth(q, one.class), one.flow)) or 0
end

-- The bytes of one tenant are looked at only where those of all could be too many for it.
function A.bytes_refusal(q, one, rate)
  local most = one.most_bytes > 0 and one.most_bytes or q.settings.tenant_bytes
  if P.get(q, 'bytes', 0) + one.bytes <= most * (1 - q.settings.kept_share) then return nil end
  local bytes, depth = A.tenant_bytes(q, one), A.tenant_depth(q, one)
  local mean = depth > 0 and bytes / depth or one.bytes
  return A.tenant_share(q, one, 'bytes', most, bytes, one.bytes, rate * mean)
end

function A.tenant_refusal(q, one)
  one.spending = {}
  local answer = A.rate_refusal(q, one, 'requests', one.per_minute, 1)
    or A.rate_refusal(q, one, 'tokens', one.tokens_per_minute, one.expected)
  if answer then return answer end
  local rate = F.drain_rate(q, 'class:' .. one.class)
  if one.most > 0 then
    answer = A.tenant_share(q, one, 'depth', one.most, A.tenant_depth(q, one), 1, rate)
  end
  return answer or A.bytes_refusal(q, one, rate)
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
  if not A.fits(q, limit, one) then return A.refuse(q, limit, one) end
  limit = A.depth_limit(q, 'pool', q.settings.depth, P.get(q, 'queued', 0))
  if A.fits(q, limit, one) then return nil end
  local over = limit.backlog + 1 - (limit.bound - A.kept(q, limit, one))
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
    for _, flow in ipairs(redis.call('ZREVRANGE', K.depth(q, name), 0, 7)) do
      A.newest(q, flow, needed, list)
      if #list >= needed then return list end
    end
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
