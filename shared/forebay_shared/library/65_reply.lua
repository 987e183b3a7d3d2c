-- What a reader sees: reply, show; and cancel.

local R = {BYTES = 1048576}

function R.read_wanted(r)
  return {id = P.word(r), offset = P.number(r)}
end

-- Chunks after `offset` while the call's budget of bytes lasts, and whether the end mark was reached.
function R.chunks(q, id, offset, budget)
  local list, ended = {}, 0
  local from = P.text(offset + 1) .. '-0'
  while budget.left > 0 do
    local page = redis.call('XRANGE', K.output(q, id), from, '+', 'COUNT', 32)
    for _, entry in ipairs(page) do
      local fields = P.flat(entry[2])
      if fields['end'] then return list, 1 end
      local number = string.match(entry[1], '^(%d+)')
      list[#list + 1], list[#list + 2] = number, fields.event
      budget.left = budget.left - #fields.event
      if budget.left <= 0 then return list, ended end
      from = '(' .. entry[1]
    end
    if #page < 32 then break end
  end
  return list, ended
end

-- The stored result, as far as the call's budget goes; nil: ask again.
function R.result(q, id, budget)
  if budget.left <= 0 then return nil end
  local result = redis.call('GET', K.result(q, id)) or ''
  budget.left = budget.left - #result
  return result
end

function R.seen(q, inbox, one, budget)
  local known = redis.call('HMGET', K.request(q, one.id), 'state', 'offset', 'watchers')
  if not known[1] then return {one.id, '', 0, '', {}, 0} end
  local over, offset = P.TERMINAL[known[1]], tonumber(known[2])
  if inbox ~= '' and not over then M.watch(q, one.id, known[3], inbox) end
  local chunks, ended = {}, over and 1 or 0
  if one.offset >= 0 then chunks, ended = R.chunks(q, one.id, one.offset, budget) end
  if over and one.offset >= offset then ended = 1 end
  local result = ended == 1 and R.result(q, one.id, budget)
  if ended == 1 and not result then ended = 0 end
  return {one.id, known[1], offset, result or '', chunks, ended}
end

-- reply(inbox, n, n x (id, offset))
-- Guarantee: what is seen is one moment; the inbox hears of everything after it.
-- KEYS: layout, never.
-- ARGV: inbox that watches from now on (or empty), n, then per item: id, chunks that the reader has (-1:
--   it reads no chunks).
-- Returns: per item {id, state or '', offset, result or '', {offset, event, ...}, ended 0/1}; at most
--   about 1 MiB of chunks and results a call, at least one; ended: all was seen, the result included
--   (a final state that is not ended: ask again).
-- Flags: allow-oom.
local function reply(keys, args)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  local r = P.reader(args)
  local inbox = P.word(r)
  local items = P.items(r, R.read_wanted)
  wrong = P.refuse(r)
  if wrong then return wrong end
  local rows, budget = {}, {left = R.BYTES}
  for i, one in ipairs(items) do rows[i] = R.seen(q, inbox, one, budget) end
  return rows
end

-- The reader behind `inbox` leaves: whether anybody is left who wants the request. Replicas that are gone
-- (their inbox has expired) want nothing; a detached request is wanted by whoever comes back for it.
function R.wanted(q, record, inbox)
  local names = {}
  for name in string.gmatch(record.watchers, '[^,]+') do
    if name ~= inbox and redis.call('EXISTS', K.inbox(q, name)) == 1 then
      names[#names + 1] = name
    end
  end
  redis.call('HSET', K.request(q, record.id), 'watchers', table.concat(names, ','))
  record.watchers = table.concat(names, ',')
  return record.detached == '1' or #names > 0
end

-- An admit whose answer was lost may come after its cancel: this record answers it. It is counted
-- nowhere, since nothing was accepted.
function R.forestall(q, id, tenant)
  local key = K.request(q, id)
  redis.call('HSET', key, 'state', 'cancelled', 'place', '', 'class', '', 'tenant', tenant, 'bucket', 0,
    'entry', 0, 'lease', '', 'model', '', 'stream', 0, 'watchers', '', 'offset', 0, 'takes', 0,
    'attempts', 0, 'crashes', 0, 'admitted', q.now, 'taken', 0, 'ended', q.now, 'deadline', q.now)
  redis.call('PEXPIRE', key, 900000)
  return 'cancelled'
end

-- cancel(id, tenant, inbox, in doubt)
-- Guarantee: a live request ends as cancelled at once, charged for what it has used; the worker that
--   runs it is told. One that has ended keeps its state. With an inbox, only that reader leaves, and the
--   request ends if it is not detached and no other replica watches it. In doubt, an unknown id is
--   taken as cancelled for 15 min, so that an admit which comes later stores nothing.
-- KEYS: layout, never.
-- ARGV: id, tenant that asks (empty: any), inbox of the reader that leaves (empty: cancel anyway), in
--   doubt 0/1.
-- Returns: the state now; '' where there is no record or it is another tenant's.
-- Flags: allow-oom.
local function cancel(keys, args)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  local r = P.reader(args)
  local id, tenant, inbox, doubt = P.word(r), P.word(r), P.word(r), P.number(r)
  wrong = P.refuse(r)
  if wrong then return wrong end
  local record = M.load(q, id)
  if not record then return doubt == 1 and R.forestall(q, id, tenant) or '' end
  if tenant ~= '' and record.tenant ~= tenant then return '' end
  if P.TERMINAL[record.state] then return record.state end
  if inbox ~= '' and R.wanted(q, record, inbox) then return record.state end
  E.close(q, record, 'cancelled', 'cancelled')
  P.close(q)
  return record.state
end

-- Why a request waits.
function R.waits_for(q, record)
  if record.state ~= 'queued' then return '' end
  if record.place == 'delayed' then return 'retry' end
  if q.clock.paused == '1' then return 'paused' end
  local alive = q.now - q.settings.worker_ttl_ms
  if redis.call('ZCOUNT', K.workers(q), alive, '+inf') == 0 then return 'worker' end
  return record.place == 'suspect' and 'suspect' or 'slot'
end

-- show(id, tenant)
-- Guarantee: one request as it stands, for its tenant only.
-- KEYS: layout, never.
-- ARGV: id, tenant that asks (empty: any).
-- Returns: {} where there is no record or it is another tenant's; else {id, state, class, tenant, model,
--   stream, rank (-1: does not wait), waits for, takes, attempts, crashes, offset, and in ms admitted,
--   taken, ended, deadline, now; result or ''}.
-- Flags: no-writes.
local function show(keys, args)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  local r = P.reader(args)
  local id, tenant = P.word(r), P.word(r)
  wrong = P.refuse(r)
  if wrong then return wrong end
  local record = M.load(q, id)
  if not record or (tenant ~= '' and record.tenant ~= tenant) then return {} end
  local rank = redis.call('ZRANK', K.waiting(q, record.class), id)
  local row = {id, record.state, record.class, record.tenant, record.model, record.stream,
    rank or -1, R.waits_for(q, record)}
  for _, field in ipairs({'takes', 'attempts', 'crashes', 'offset', 'admitted', 'taken', 'ended',
    'deadline'}) do row[#row + 1] = tonumber(record[field]) end
  row[#row + 1] = q.now
  row[#row + 1] = redis.call('GET', K.result(q, id)) or ''
  return row
end

redis.register_function{function_name = 'forebay_reply_@HASH@', callback = reply, flags = {'allow-oom'}}
redis.register_function{function_name = 'forebay_cancel_@HASH@', callback = cancel,
  flags = {'allow-oom'}}
redis.register_function{function_name = 'forebay_show_@HASH@', callback = show, flags = {'no-writes'}}
