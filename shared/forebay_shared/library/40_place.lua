-- Where a live request is, and moving it: `waiting` (never taken), `returned` (given back, takeable),
-- `delayed` (until its retry is due), `suspect` (has crashed), `running`. Its stream entry stays
-- the same; a given-back one is pending for a consumer whose name starts with `@`.

local M = {WATCHERS = 4, CONSUMER = {returned = '@returned', delayed = '@delayed', suspect = '@suspect'}}

function M.load(q, id)
  local list = redis.call('HGETALL', K.request(q, id))
  if #list == 0 then return nil end
  local record = P.flat(list)
  record.id = id
  record.flow = record.class .. ':' .. record.tenant
  record.queue = K.queue(q, record.flow, record.bucket)
  return record
end

function M.save(q, record, ...)
  local set = {}
  for _, field in ipairs({...}) do
    set[#set + 1] = field
    set[#set + 1] = record[field]
  end
  redis.call('HSET', K.request(q, record.id), unpack(set))
end

function M.entry(record)
  return record.entry .. '-0'
end

-- The fence: running under exactly this lease, and no pending row that names another worker.
function M.held(q, record, worker, call)
  if not record or record.state ~= 'running' then return false end
  if record.lease ~= worker .. '/' .. P.text(call) then return false end
  local entry = M.entry(record)
  local row = redis.pcall('XPENDING', record.queue, P.GROUP, entry, entry, 1)
  return row.err ~= nil or row[1] == nil or row[1][2] == worker
end

function M.worker_of(record)
  return string.match(record.lease or '', '^(.*)/%d+$') or ''
end

function M.ring(q, class)
  q.rings[class] = (q.rings[class] or 0) + 1
end

-- At most 4 watchers, oldest out.
function M.watch(q, id, watchers, inbox)
  local names = {}
  for name in string.gmatch(watchers, '[^,]+') do
    if name == inbox then return end
    names[#names + 1] = name
  end
  names[#names + 1] = inbox
  while #names > M.WATCHERS do table.remove(names, 1) end
  redis.call('HSET', K.request(q, id), 'watchers', table.concat(names, ','))
end

-- News for the replicas that watch the request.
function M.notify(q, record)
  for name in string.gmatch(record.watchers or '', '[^,]+') do
    redis.call('XADD', K.inbox(q, name), 'NOMKSTREAM', 'MAXLEN', '~', 1000, '*', 'id', record.id)
  end
end

function M.order(q, worker, text)
  local key = K.control(q, worker)
  redis.call('RPUSH', key, text)
  redis.call('PEXPIRE', key, 60000)
end

-- A counter of a flow in a sorted set; the member goes with the last one. What is left.
function M.shift(key, flow, by)
  local left = tonumber(redis.call('ZINCRBY', key, by, flow))
  if left <= 0 then redis.call('ZREM', key, flow) end
  return left
end

-- A never-taken entry leaves or enters its flow: counted by flow, its bytes also in the pool.
function M.count_waiting(q, record, by)
  local bytes = by * tonumber(record.bytes)
  local sizes = M.shift(K.sizes(q, record.class), record.flow, bytes)
  P.add(q, 'bytes', bytes - math.min(0, sizes)) -- no more than was counted
  return M.shift(K.depth(q, record.class), record.flow, by)
end

-- Bytes that stand for nothing any more: their entries were deleted by foreign hands.
function M.drop_bytes(q, class, flow)
  local left = tonumber(redis.call('ZSCORE', K.sizes(q, class), flow))
  if not left then return end
  P.add(q, 'bytes', -left)
  redis.call('ZREM', K.sizes(q, class), flow)
end

-- The queue's row of the request goes to another consumer; made anew where it was missing.
function M.claim(q, record, consumer)
  redis.pcall('XCLAIM', record.queue, P.GROUP, consumer, 0, M.entry(record), 'FORCE', 'JUSTID')
end

-- A consumer without rows is a name that nobody reaps: it goes with its last row.
function M.tidy_consumer(q, record, worker)
  if worker == '' then return end
  local row = redis.pcall('XPENDING', record.queue, P.GROUP, '-', '+', 1, worker)
  if row.err == nil and #row == 0 then
    redis.pcall('XGROUP', 'DELCONSUMER', record.queue, P.GROUP, worker)
  end
end

-- After foreign hands the count of undelivered entries is as large as it can be: a take that finds none
-- mends it, while one too small would leave requests that nobody looks for. (Pending rows cannot be
-- subtracted: those of deleted entries are among them.)
function M.recount(q, record)
  local total, class, flow = redis.call('XLEN', record.queue), record.class, record.flow
  if total == 0 then
    redis.call('ZREM', K.depth(q, class), flow)
    M.drop_bytes(q, class, flow)
    return F.close_flow(q, class, flow)
  end
  redis.call('ZADD', K.depth(q, class), total, flow)
  F.open_flow(q, class, flow)
end

-- Out of `waiting`. `intact`: its entry was there; else the stream tells how many are left.
function M.leave_waiting(q, record, intact)
  local class, left = record.class, 0
  redis.call('ZREM', K.waiting(q, class), record.id)
  if not intact then return M.recount(q, record) end
  left = M.count_waiting(q, record, -1)
  if left <= 0 then
    M.drop_bytes(q, class, record.flow)
    F.close_flow(q, class, record.flow)
  end
end

-- Suspects by what may hold them: wire version and crashes; of a kind in order of arrival.
function M.suspect(entry, id)
  return string.format('%016.0f|', tonumber(entry)) .. id
end

function M.suspect_kind(record)
  return tonumber(record.wire) * 1000 + math.min(999, tonumber(record.crashes))
end

M.LEAVE = {
  waiting = M.leave_waiting,
  returned = function(q, record)
    redis.call('ZREM', K.waiting(q, record.class), record.id)
    local left = M.shift(K.returned(q, record.class), record.flow, -1)
    if left <= 0 then F.close_flow(q, record.class, record.flow) end
  end,
  delayed = function(q, record)
    redis.call('ZREM', K.delayed(q), record.id)
  end,
  suspect = function(q, record)
    redis.call('ZREM', K.suspects(q, record.class), M.suspect(record.entry, record.id))
    F.touch_class(q, record.class)
  end,
}

-- Out of the queued place that it is in; `intact` as above. Each request drains the queue once: who is
-- given back has been counted, and shedding makes room for nobody who waits outside.
function M.leave_place(q, record, intact)
  local class = record.class
  M.LEAVE[record.place](q, record, intact)
  P.add(q, 'queued', -1)
  P.add(q, 'queued:' .. class, -1)
  if record.reason ~= 'shed' and tonumber(record.takes) == 0 then
    F.drained(q, 'pool', 1)
    F.drained(q, 'class:' .. class, 1)
  end
end

-- Out of running: lease, counters, and the worker's list of suspects.
function M.leave_running(q, record)
  local worker = M.worker_of(record)
  redis.call('ZREM', K.leases(q), record.id)
  F.note_end(q, record)
  P.add(q, 'running', -1)
  P.add(q, 'running:' .. record.class, -1)
  if tonumber(record.crashes) > 0 then
    redis.call('HDEL', K.worker(q, worker), 'suspect:' .. record.id)
  end
  return worker
end

-- Into a queued place. Given back, its rank by arrival stays: the score is the entry number.
function M.enter_place(q, record, place, due)
  record.state, record.place = 'queued', place
  local class = record.class
  P.add(q, 'queued', 1)
  P.add(q, 'queued:' .. class, 1)
  M.claim(q, record, M.CONSUMER[place])
  if place == 'returned' then
    redis.call('ZADD', K.waiting(q, class), record.entry, record.id)
    redis.call('ZINCRBY', K.returned(q, class), 1, record.flow)
    F.open_flow(q, class, record.flow)
    M.ring(q, class)
  elseif place == 'suspect' then
    redis.call('ZADD', K.suspects(q, class), M.suspect_kind(record), M.suspect(record.entry, record.id))
    F.wake_class(q, class)
    M.ring(q, class)
  else
    redis.call('ZADD', K.delayed(q), due, record.id)
  end
end

-- Where a request goes that is given back without delay.
function M.home(record)
  return tonumber(record.crashes) > 0 and 'suspect' or 'returned'
end

-- Tokens used, as the worker tells them; never less than what it told before.
function M.note_usage(q, record, usage)
  local used = F.cost(q, usage.prompt, usage.cached, usage.output)
  record.used = math.max(used, tonumber(record.used))
  return record.used
end

-- Given back by a worker or taken from it: what was used is charged, place and arrival stay.
function M.give_back(q, record, place, due)
  local worker = M.leave_running(q, record)
  F.settle(q, record, tonumber(record.used))
  record.lease = ''
  M.enter_place(q, record, place, due or 0)
  M.tidy_consumer(q, record, worker)
  M.save(q, record, 'state', 'place', 'lease', 'charged', 'used', 'attempts', 'crashes', 'solos')
  M.notify(q, record)
end
