-- sweep: what time alone makes due. Offered by every process, done by whichever comes first in a tick.

-- Work of one call, so that it stays far below 5 ms; what was full is repeated at once.
local S = {BUDGET = 4, AUDIT = 20}

-- What is due, as far as the call's budget goes, and whether there may be more.
function S.due(q, did, key)
  local ids = redis.call('ZRANGEBYSCORE', key, '-inf', q.now, 'LIMIT', 0, did.left)
  local full = #ids == did.left
  did.left = did.left - #ids
  return ids, full
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
  local ids, full = S.due(q, did, K.deadlines(q))
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
  local ids, full = S.due(q, did, K.delayed(q))
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
  local ids, full = S.due(q, did, K.leases(q))
  for _, id in ipairs(ids) do
    local record = S.load(q, K.leases(q), id)
    if record and S.has_entry(record) then
      B.crash(q, record)
      did.reclaimed = did.reclaimed + 1
    elseif record then
      E.close(q, record, 'dead', 'lost')
      did.repaired = did.repaired + 1
    end
  end
  return full
end

function S.has_entry(record)
  local entry = M.entry(record)
  local found = redis.pcall('XRANGE', record.queue, entry, entry)
  return not found.err and found[1] ~= nil
end

-- Audit ------------------------------------------------------------------------------------------
-- Pages through what should agree, with kept cursors: entries without record become dead letters,
-- running ones without lease get one that has run out, records without entry end as lost.

function S.audit_entry(q, flow, queue, entry, did)
  local class, tenant = string.match(flow, '^([^:]*):(.*)$')
  local fields = P.flat(entry[2])
  local record = fields.id and fields.head and fields.body and M.load(q, fields.id)
  if not record or M.entry(record) ~= entry[1] or P.TERMINAL[record.state] then
    E.bury_foreign(q, queue, class, tenant, entry[1], entry[2])
    did.repaired = did.repaired + 1
  elseif record.state == 'running' and not redis.call('ZSCORE', K.leases(q), record.id) then
    redis.call('ZADD', K.leases(q), q.now, record.id)
    did.repaired = did.repaired + 1
  elseif record.place == 'returned' and not S.has_row(record) then
    S.return_again(q, record)
    did.repaired = did.repaired + 1
  end
end

function S.has_row(record)
  local entry = M.entry(record)
  local rows = redis.pcall('XPENDING', record.queue, P.GROUP, entry, entry, 1)
  return rows.err ~= nil or rows[1] ~= nil
end

-- Given back, but its row was acknowledged by foreign hands: nobody would read it again.
function S.return_again(q, record)
  M.claim(q, record, M.CONSUMER.returned)
  if not redis.call('ZSCORE', K.returned(q, record.class), record.flow) then
    redis.call('ZADD', K.returned(q, record.class), 1, record.flow)
  end
  F.open_flow(q, record.class, record.flow)
  M.ring(q, record.class)
end

-- One page of a flow's stream from the kept entry on; true where the flow has more.
function S.audit_flow(q, flow, from, left, did)
  local queue = K.queue(q, flow, 0)
  local page = redis.call('XRANGE', queue, from, '+', 'COUNT', left)
  for _, entry in ipairs(page) do S.audit_entry(q, flow, queue, entry, did) end
  if #page > 0 then q.clock.audit_entry = page[#page][1] end
  E.drop_empty(q, queue, flow)
  return #page
end

function S.audit_streams(q, did)
  local flow, entry = q.clock.audit_flow or '', q.clock.audit_entry or ''
  local left = S.AUDIT
  local from = flow == '' and '-' or (entry == '' and '(' or '[') .. flow
  local flows = redis.call('ZRANGEBYLEX', K.flows(q), from, '+', 'LIMIT', 0, S.AUDIT)
  for _, name in ipairs(flows) do
    local start = (name == flow and entry ~= '') and '(' .. entry or '-'
    local count = S.audit_flow(q, name, start, left, did)
    flow, left = name, left - count
    if left <= 0 then break end
    q.clock.audit_entry = ''
  end
  if #flows < S.AUDIT and left > 0 then flow, q.clock.audit_entry = '', '' end
  P.set(q, 'audit_flow', flow)
  P.set(q, 'audit_entry', q.clock.audit_entry or '')
end

-- A page of all live requests: each has its entry; one that runs without may still end well.
function S.audit_records(q, did)
  local rank = P.get(q, 'audit_rank', 0)
  local ids = redis.call('ZRANGE', K.deadlines(q), rank, rank + S.AUDIT - 1)
  P.set(q, 'audit_rank', #ids == S.AUDIT and rank + S.AUDIT or nil)
  for _, id in ipairs(ids) do
    local record = M.load(q, id)
    local runs = record and record.state == 'running' and redis.call('ZSCORE', K.leases(q), id)
    if record and not runs and not S.has_entry(record) then
      E.close(q, record, 'dead', 'lost')
      did.repaired = did.repaired + 1
    end
  end
end

-- Tags at or below v of flows that have nothing left say nothing: a page each time.
function S.forget_tags(q)
  for _, class in ipairs(q.settings.classes) do
    local field, name = 'forget:' .. class.name, class.name
    local at = P.get(q, field, 0)
    local flows = redis.call('ZRANGEBYSCORE', K.tags(q, name), '-inf', P.get(q, 'v:' .. name, 0),
      'LIMIT', at, S.AUDIT)
    local kept = 0
    for _, flow in ipairs(flows) do
      if redis.call('ZSCORE', K.flows(q), flow) then
        kept = kept + 1
      else
        redis.call('ZREM', K.tags(q, name), flow)
      end
    end
    P.set(q, field, #flows == S.AUDIT and at + kept or nil)
  end
end

-- Workers that have not registered for worker_ttl leave the registry.
function S.forget_workers(q)
  local key, until_ms = K.workers(q), q.now - q.settings.worker_ttl_ms
  local gone = redis.call('ZRANGEBYSCORE', key, '-inf', until_ms, 'LIMIT', 0, S.AUDIT)
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
  S.audit_streams(q, did)
  S.audit_records(q, did)
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
--   leases that ran out and audits a page. At most 4 requests a call.
-- KEYS: layout, never.
-- ARGV: forced 0/1 (repeat at once after `again`: no throttle, no audit).
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
  local did = {left = S.BUDGET, expired = 0, retried = 0, reclaimed = 0, repaired = 0}
  if not forced then
    P.set(q, 'swept', q.now)
    B.seen(q)
  end
  local expire, retry = S.expire(q, did), S.retry(q, did)
  local again = S.slow_part(q, did, forced) or expire or retry
  S.ring_waiting(q)
  P.close(q)
  return {did.expired, did.retried, did.reclaimed, did.repaired, again and 1 or 0}
end

redis.register_function{function_name = 'forebay_sweep_@HASH@', callback = sweep, flags = {'allow-oom'}}
