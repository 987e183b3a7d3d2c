-- take: which class, and the grant.

-- A call ends few requests on its way, so that it takes no 5 ms, and passes at most LEFT flows that it leaves
-- for newer workers: behind more, during such a deploy, an older worker sees nothing.
T.PAYLOAD_BYTES, T.LEFT, T.ENDED = 1048576, 100, 3

function T.read(r)
  local t = {worker = P.word(r), call = P.whole(r), slots = P.whole(r), wire = P.whole(r)}
  t.count, t.free, t.classes = P.whole(r), {}, {}
  for i = 1, P.count(r) do
    t.classes[i] = P.word(r)
    t.free[t.classes[i]] = P.whole(r)
  end
  if t.count > 100 then r.bad = r.bad or 'a take grants at most 100' end
  if t.worker == '' or string.find(t.worker, '[@/|]') then r.bad = r.bad or 'a bad worker id' end
  return t
end

function T.row(q, t, record, head, body)
  return {record.id, record.class, record.tenant, t.call, tonumber(record.takes),
    tonumber(record.attempts), tonumber(record.crashes), tonumber(record.offset),
    record.solo == '1' and 1 or 0, tonumber(record.deadline) - q.now,
    q.now - tonumber(record.admitted), head, body}
end

-- The same call again: the grants of it that are still held.
function T.again(q, t, known)
  local rows = {}
  for i = 2, #known do
    local record = M.load(q, known[i])
    if M.held(q, record, t.worker, t.call) then
      local entry = M.entry(record)
      local found = redis.call('XRANGE', record.queue, entry, entry)[1]
      if found then
        local fields = P.flat(found[2])
        rows[#rows + 1] = T.row(q, t, record, fields.head, fields.body)
      end
    end
  end
  return rows
end

-- Charges both levels and makes the request running under the lease <worker>/<call>.
function T.grant(q, t, list, chosen, strict, record)
  local class, from = record.class, record.place
  local expected, charged = F.estimate(q, record), tonumber(record.charged)
  local add = math.max(0, expected - charged)
  F.charge_class(q, list, chosen, strict, add)
  F.charge_flow(q, class, record.flow, tonumber(record.flow_weight), add,
    from ~= 'suspect' and not t.passed_over[class])
  M.leave_place(q, record, true)
  record.state, record.place = 'running', ''
  record.lease = t.worker .. '/' .. P.text(t.call)
  record.takes, record.charged, record.weight = tonumber(record.takes) + 1, charged + add, chosen.weight
  record.taken, record.solo = q.now, 0
  if tonumber(record.crashes) > 0 then T.note_suspect(q, t, record) end
  F.note_held(q, record.charged, expected)
  P.add(q, 'running', 1)
  P.add(q, 'running:' .. class, 1)
  redis.call('ZADD', K.leases(q), q.now + q.settings.lease_ms, record.id)
  M.save(q, record, 'state', 'place', 'lease', 'takes', 'charged', 'weight', 'taken', 'solo')
end

function T.note_suspect(q, t, record)
  local crashes, key = tonumber(record.crashes), K.worker(q, t.worker)
  t.suspects[#t.suspects + 1] = crashes
  if T.cap(t.slots, crashes) == 1 then record.solo = '1' end
  redis.call('HSET', key, 'suspect:' .. record.id, crashes)
  redis.call('PEXPIRE', key, 10 * q.settings.worker_ttl_ms)
end

-- One step of a take: a grant; something ended on the way (expired, lost, not ours, read again) or left for
-- newer workers; a class found without a candidate (blocked); none left to choose from.
function T.step(q, t)
  local list = F.waiting_classes(q)
  local chosen, strict = F.choose_class(q, list, t.eligible)
  if not chosen then return 'none' end
  local class = chosen.name
  local suspect, flow = T.suspect(q, t, class), nil
  if not suspect then flow = T.flow(q, t, class) end
  if not suspect and not flow then
    t.eligible[class] = nil
    return 'blocked'
  end
  local record, fields
  if suspect then
    record, fields = T.next_suspect(q, t, suspect)
  else
    record, fields = T.next_of_flow(q, t, class, flow)
  end
  if not record then
    M.tidy_consumer(q, suspect or {queue = K.queue(q, flow, 0)}, t.worker)
    if suspect or not t.newer[flow] then return 'ended' end
    return 'left'
  end
  if not strict then F.bound_windup(q, list, t.eligible, chosen) end
  T.grant(q, t, list, chosen, strict, record)
  t.rows[#t.rows + 1] = T.row(q, t, record, fields.head, fields.body)
  t.bytes = t.bytes + #fields.head + #fields.body
  t.ring[class] = true
  t.free[class] = t.free[class] - 1
  if t.free[class] <= 0 then t.eligible[class] = nil end
  return 'granted'
end

function T.grants(q, t)
  t.rows, t.bytes, t.ring, t.eligible, t.newer, t.passed_over = {}, 0, {}, {}, {}, {}
  for class, free in pairs(t.free) do
    if free > 0 then t.eligible[class] = true end
  end
  local did = {granted = 0, blocked = 0, left = 0, ended = 0}
  while #t.rows < t.count and t.bytes < T.PAYLOAD_BYTES and did.left < T.LEFT and did.ended < T.ENDED do
    local what = T.step(q, t)
    if what == 'none' then break end
    did[what] = did[what] + 1
  end
  local full = t.left_some and t.bytes >= T.PAYLOAD_BYTES
  if did.ended == T.ENDED or full then T.go_on(t) end
end

-- Nobody looked at what is behind those that ended or were left.
function T.go_on(t)
  for class in pairs(t.eligible) do t.ring[class] = true end
end

-- One wake-up more for the next worker where entries remain; none for an empty class.
function T.bells(q, t)
  local backlog = {}
  for _, class in ipairs(t.classes) do
    local left = redis.call('ZCARD', K.waiting(q, class)) + redis.call('ZCARD', K.suspects(q, class))
    backlog[#backlog + 1], backlog[#backlog + 2] = class, left
    if left == 0 then
      q.rings[class] = nil
      redis.call('DEL', K.bell(q, class))
    elseif t.ring and t.ring[class] then
      M.ring(q, class)
    end
  end
  return backlog
end

function T.remember(q, t)
  local key = K.grant(q, t.worker)
  local list = {P.text(t.call)}
  for i, row in ipairs(t.rows) do list[i + 1] = row[1] end
  redis.call('DEL', key)
  redis.call('RPUSH', key, unpack(list))
  redis.call('PEXPIRE', key, 4 * q.settings.lease_ms)
end

function T.run(q, t)
  local known = redis.call('LRANGE', K.grant(q, t.worker), 0, -1)
  local last = tonumber(known[1]) or -1
  if t.call < last then return {{}, {}} end
  if t.call == last then return {T.again(q, t, known), T.bells(q, t)} end
  t.rows = {}
  if q.clock.paused ~= '1' then T.grants(q, t) end
  T.remember(q, t)
  return {t.rows, T.bells(q, t)}
end

-- take(worker, call, slots, wire, count, n, n x (class, free))
-- Guarantee: grants up to `count` requests by the fairness rule, each under the lease <worker>/<call>;
--   the same call number grants nothing new and names the grants of it that are still held; a lower
--   one gets nothing. What has expired or cannot be granted ends on the way; after 3 of those the call
--   returns what it has, and rings. Passes at most 100 flows for newer workers. Stops at 1 MiB of payload,
--   that of requests left for newer workers for the first time included, and then rings likewise.
-- KEYS: layout, never.
-- ARGV: worker id, call number (grows by one with each new call), all slots, highest wire version
--   known, most grants, n classes, then per class: name, most grants of it.
-- Returns: {grants, backlog}: grants {id, class, tenant, call, take, attempts, crashes, offset,
--   solo 0/1, ms until the deadline, ms since the admit, head, body}; backlog {class, takeable requests left, ...}.
-- Flags: allow-oom.
local function take(keys, args)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  local r = P.reader(args)
  local t = T.read(r)
  wrong = P.refuse(r)
  if wrong then return wrong end
  local answer = T.run(q, t)
  P.close(q)
  return answer
end

redis.register_function{function_name = 'forebay_take_@HASH@', callback = take, flags = {'allow-oom'}}
