-- The audit, a part of each sweep that reclaims.
-- Pages through what should agree, with kept cursors: entries without record become dead letters,
-- running ones without lease get one that has run out, records without entry end as lost.

-- Work of one audit: entries of streams, and as many records; read in pages, up to so many bytes.
local C = {ENTRIES = 20, PAGE = 2, BYTES = 262144}

function C.has_entry(record)
  local entry = M.entry(record)
  local found = redis.pcall('XRANGE', record.queue, entry, entry)
  return not found.err and found[1] ~= nil
end

function C.entry(q, flow, queue, entry, did)
  local class, tenant = string.match(flow, '^([^:]*):(.*)$')
  local fields = P.flat(entry[2])
  local record = fields.id and fields.head and fields.body and M.load(q, fields.id)
  if not record or M.entry(record) ~= entry[1] or P.TERMINAL[record.state] then
    E.bury_foreign(q, queue, class, tenant, entry[1], entry[2])
    did.repaired = did.repaired + 1
  elseif record.state == 'running' and not redis.call('ZSCORE', K.leases(q), record.id) then
    redis.call('ZADD', K.leases(q), q.now, record.id)
    did.repaired = did.repaired + 1
  elseif record.place == 'returned' and not C.has_row(record) then
    C.return_again(q, record)
    did.repaired = did.repaired + 1
  end
end

function C.has_row(record)
  local entry = M.entry(record)
  local rows = redis.pcall('XPENDING', record.queue, P.GROUP, entry, entry, 1)
  return rows.err ~= nil or rows[1] ~= nil
end

-- Given back, but its row was acknowledged by foreign hands: nobody would read it again.
function C.return_again(q, record)
  M.claim(q, record, M.CONSUMER.returned)
  if not redis.call('ZSCORE', K.returned(q, record.class), record.flow) then
    redis.call('ZADD', K.returned(q, record.class), 1, record.flow)
  end
  F.open_flow(q, record.class, record.flow)
  M.ring(q, record.class)
end

function C.has_room(room)
  return room.entries > 0 and room.bytes > 0
end

-- A flow's stream from the kept entry on, as far as there is room.
function C.flow(q, flow, from, room, did)
  local queue = K.queue(q, flow, 0)
  local page, most
  repeat
    most = math.min(C.PAGE, room.entries)
    page = redis.call('XRANGE', queue, from, '+', 'COUNT', most)
    for _, entry in ipairs(page) do
      C.entry(q, flow, queue, entry, did)
      room.entries = room.entries - 1
      for i = 1, #entry[2] do room.bytes = room.bytes - #entry[2][i] end
      q.clock.audit_entry, from = entry[1], '(' .. entry[1]
    end
  until #page < most or not C.has_room(room)
  E.drop_empty(q, queue, flow)
end

function C.streams(q, did)
  local flow, entry = q.clock.audit_flow or '', q.clock.audit_entry or ''
  local room = {entries = C.ENTRIES, bytes = C.BYTES}
  local from = flow == '' and '-' or (entry == '' and '(' or '[') .. flow
  local flows = redis.call('ZRANGEBYLEX', K.flows(q), from, '+', 'LIMIT', 0, C.ENTRIES)
  for _, name in ipairs(flows) do
    local start = (name == flow and entry ~= '') and '(' .. entry or '-'
    C.flow(q, name, start, room, did)
    flow = name
    if not C.has_room(room) then break end
    q.clock.audit_entry = ''
  end
  if #flows < C.ENTRIES and C.has_room(room) then flow, q.clock.audit_entry = '', '' end
  P.set(q, 'audit_flow', flow)
  P.set(q, 'audit_entry', q.clock.audit_entry or '')
end

-- To see whether an entry is there is to read it.
function C.record(q, record, room, did)
  if not record then return end
  if record.state == 'running' and redis.call('ZSCORE', K.leases(q), record.id) then return end
  room.bytes = room.bytes - tonumber(record.bytes)
  if not C.has_entry(record) then
    E.close(q, record, 'dead', 'lost')
    did.repaired = did.repaired + 1
  end
end

-- A page of all live requests: each has its entry; one that runs without may still end well.
function C.records(q, did)
  local rank = P.get(q, 'audit_rank', 0)
  local ids = redis.call('ZRANGE', K.deadlines(q), rank, rank + C.ENTRIES - 1)
  local room = {entries = C.ENTRIES, bytes = C.BYTES}
  for _, id in ipairs(ids) do
    if not C.has_room(room) then break end
    room.entries = room.entries - 1
    C.record(q, M.load(q, id), room, did)
  end
  local read = C.ENTRIES - room.entries
  P.set(q, 'audit_rank', (read == C.ENTRIES or read < #ids) and rank + read or nil)
end
