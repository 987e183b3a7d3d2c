-- What a reader sees: reply, show; and cancel.

local R = {CHUNK_BYTES = 1048576, WATCHERS = 4}

function R.read_wanted(r)
  return {id = P.word(r), offset = P.number(r)}
end

-- At most 4 watchers, oldest out.
function R.watch(q, id, watchers, inbox)
  local names = {}
  for name in string.gmatch(watchers, '[^,]+') do
    if name == inbox then return end
    names[#names + 1] = name
  end
  names[#names + 1] = inbox
  while #names > R.WATCHERS do table.remove(names, 1) end
  redis.call('HSET', K.request(q, id), 'watchers', table.concat(names, ','))
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

function R.seen(q, inbox, one, budget)
  local known = redis.call('HMGET', K.request(q, one.id), 'state', 'offset', 'watchers')
  if not known[1] then return {one.id, '', 0, '', {}, 0} end
  local over = P.TERMINAL[known[1]]
  if inbox ~= '' and not over then R.watch(q, one.id, known[3], inbox) end
  local chunks, ended = {}, over and 1 or 0
  if one.offset >= 0 then chunks, ended = R.chunks(q, one.id, one.offset, budget) end
  if over and one.offset >= tonumber(known[2]) then ended = 1 end
  local result = over and redis.call('GET', K.result(q, one.id)) or ''
  return {one.id, known[1], tonumber(known[2]), result or '', chunks, ended}
end

-- reply(inbox, n, n x (id, offset))
-- Guarantee: what is seen is one moment; the inbox hears of everything after it.
-- KEYS: layout, never.
-- ARGV: inbox that watches from now on (or empty), n, then per item: id, chunks that the reader has (-1:
--   it reads no chunks).
-- Returns: per item {id, state or '', offset, result or '', {offset, event, ...}, ended 0/1}; at most
--   about 1 MiB of chunks a call; ended: the end mark was reached (without chunks: the state is final).
-- Flags: allow-oom.
local function reply(keys, args)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  local r = P.reader(args)
  local inbox = P.word(r)
  local items = P.items(r, R.read_wanted)
  wrong = P.refuse(r)
  if wrong then return wrong end
  local rows, budget = {}, {left = R.CHUNK_BYTES}
  for i, one in ipairs(items) do rows[i] = R.seen(q, inbox, one, budget) end
  return rows
end

-- cancel(id, tenant)
-- Guarantee: a live request ends as cancelled at once, charged for what it has used; the worker that
--   runs it is told. One that has ended keeps its state.
-- KEYS: layout, never.
-- ARGV: id, tenant that asks (empty: any).
-- Returns: the state now; '' where there is no record or it is another tenant's.
-- Flags: allow-oom.
local function cancel(keys, args)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  local r = P.reader(args)
  local id, tenant = P.word(r), P.word(r)
  wrong = P.refuse(r)
  if wrong then return wrong end
  local record = M.load(q, id)
  if not record or (tenant ~= '' and record.tenant ~= tenant) then return '' end
  if not P.TERMINAL[record.state] then E.close(q, record, 'cancelled', 'cancelled') end
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
