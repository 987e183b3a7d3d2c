-- sweep: what time alone makes due. Offered by every process, done by whichever comes first in a tick.

-- So many requests of each kind a call, so that it stays far below 5 ms and many of one kind hold up no
-- other. What was full is repeated at once.
local S = {EACH = 3}

-- What is due, as far as one call goes, and whether there may be more.
function S.due(q, key)
  local ids = redis.call('ZRANGEBYSCORE', key, '-inf', q.now, 'LIMIT', 0, S.EACH)
  return ids, #ids == S.EACH
end

-- The live record of an id. One that is gone (evicted) is found again by its entry, by the audit; until
-- then it must not stand in front of others.
function S.load(q, key, id)
  local record = M.load(q, id)
  if record and not P.TERMINAL[record.state] then return record end
  if record then
    redis.call('ZREM', key, id)
  else
    redis.call('ZADD', key, 'XX', q.now + q.settings.lease_ms, id)
  end
end

function S.expire(q, did)
  local ids, full = S.due(q, K.deadlines(q))
  for _, id in ipairs(ids) do
    local record = S.load(q, K.deadlines(q), id)
    if record then
      E.close(q, record, 'expired', 'deadline')
      did.expired = did.expired + 1
    end
  end
  return full
end

function S.retry(q, did)
  local ids, full = S.due(q, K.delayed(q))
  for _, id in ipairs(ids) do
    local record = S.load(q, K.delayed(q), id)
    if record then
      redis.call('ZREM', K.delayed(q), id)
      P.add(q, 'queued', -1)
      P.add(q, 'queued:' .. record.class, -1)
      M.enter_place(q, record, M.home(record))
      M.save(q, record, 'place')
      did.retried = did.retried + 1
    end
  end
  return full
end

-- Leases that ran out, lowest first; each is a crash. Rows without their entry are lost.
function S.reclaim(q, did)
  if not B.may_reclaim(q) then return false end
  local ids, full = S.due(q, K.leases(q))
  for _, id in ipairs(ids) do
    local record = S.load(q, K.leases(q), id)
    if record and C.has_entry(record) then
      B.crash(q, record)
      did.reclaimed = did.reclaimed + 1
    elseif record then
      E.close(q, record, 'dead', 'lost')
      did.repaired = did.repaired + 1
    end
  end
  return full
end

-- Tags at or below v of flows that have nothing left say nothing: a page each time.
function S.forget_tags(q)
  for _, class in ipairs(q.settings.classes) do
    local field, name = 'forget:' .. class.name, class.name
    local at = P.get(q, field, 0)
    local flows = redis.call('ZRANGEBYSCORE', K.tags(q, name), '-inf', P.get(q, 'v:' .. name, 0),
      'LIMIT', at, C.ENTRIES)
    local kept = 0
    for _, flow in ipairs(flows) do
      if redis.call('ZSCORE', K.flows(q), flow) then
        kept = kept + 1
      else
        redis.call('ZREM', K.tags(q, name), flow)
      end
    end
    P.set(q, field, #flows == C.ENTRIES and at + kept or nil)
  end
end

-- Workers that have not registered for worker_ttl leave the registry.
function S.forget_workers(q)
  local key, until_ms = K.workers(q), q.now - q.settings.worker_ttl_ms
  local gone = redis.call('ZRANGEBYSCORE', key, '-inf', until_ms, 'LIMIT', 0, C.ENTRIES)
  for _, worker in ipairs(gone) do G.remove(q, worker) end
end

function S.ring_waiting(q)
  for _, class in ipairs(q.settings.classes) do
    if q.clock['a:' .. class.name] then M.ring(q, class.name) end
  end
end

function S.slow_part(q, did, forced)
  local since = q.now - P.get(q, 'reclaimed', 0)
  if not forced and since >= 0 and since < q.settings.reclaim_ms then return false end
  local again = S.reclaim(q, did)
  if forced then return again end
  -- Who was told to go on at once may die: then the next tick goes on.
  if not again then P.set(q, 'reclaimed', q.now) end
  C.streams(q, did)
  C.records(q, did)
  S.forget_tags(q)
  S.forget_workers(q)
  redis.call('ZREMRANGEBYSCORE', K.models(q), '-inf', q.now - q.settings.known_model_ms)
  return again
end

-- By the noted time and not by a key's TTL, which a clock that goes back makes longer.
function S.swept_just_now(q)
  local since = q.now - P.get(q, 'swept', 0)
  return since >= 0 and since < math.floor(q.settings.sweep_ms * 0.9)
end

-- sweep(forced)
-- Guarantee: at most once a tick (a noted time, no holder that can die): expires what is past its
--   deadline, gives back due retries, rings classes that wait; every reclaim interval also takes back
--   leases that ran out and audits a page. At most 3 requests of each kind a call.
-- KEYS: layout, never.
-- ARGV: forced 0/1 (repeat at once after `again`: no throttle, no audit, no bells).
-- Returns: {} where another did it in this tick; else {expired, retried, reclaimed, repaired, again}.
-- Flags: allow-oom.
local function sweep(keys, args)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  local r = P.reader(args)
  local forced = P.number(r) == 1
  wrong = P.refuse(r)
  if wrong then return wrong end
  if not forced and S.swept_just_now(q) then return {} end
  local did = {expired = 0, retried = 0, reclaimed = 0, repaired = 0}
  if not forced then
    P.set(q, 'swept', q.now)
    B.seen(q)
  end
  local expire, retry = S.expire(q, did), S.retry(q, did)
  local again = S.slow_part(q, did, forced) or expire or retry
  if not forced then S.ring_waiting(q) end
  P.close(q)
  return {did.expired, did.retried, did.reclaimed, did.repaired, again and 1 or 0}
end

redis.register_function{function_name = 'forebay_sweep_@HASH@', callback = sweep, flags = {'allow-oom'}}
