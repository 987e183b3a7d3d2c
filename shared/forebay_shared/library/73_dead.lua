-- Dead letters, as operators read, admit anew and throw them away. They are read newest first, a part of
-- them a call: what is looked at is bounded, what is found may be nothing.

local L = {SCAN = 200, BYTES = 1048576, PAGE = 4, KEPT_MS = 35 * 86400000, MOST = 9999}

-- Which letters: by reason, class, tenant, request id (each empty: any), and age.
function L.read_wanted(r)
  return {reason = P.word(r), class = P.word(r), tenant = P.word(r), id = P.word(r), age = P.whole(r)}
end

-- Where to begin: the newest, this entry, or the next after `(` it.
function L.read_start(r)
  local from = P.word(r)
  if from == '' then return '+' end
  if not string.find(from, '^%(?%d+%-%d+$') then r.bad = r.bad or 'a bad place to begin' end
  return from
end

function L.matches(q, want, fields)
  for _, name in ipairs({'reason', 'class', 'tenant', 'id'}) do
    if want[name] ~= '' and want[name] ~= fields[name] then return false end
  end
  return (tonumber(fields.at) or 0) <= q.now - want.age
end

-- Visits up to `most` letters that match; where the next call goes on, empty at the end.
function L.each(q, want, from, most, visit)
  local seen, bytes, found = 0, 0, 0
  while true do
    local page = redis.call('XREVRANGE', K.dead(q), from, '-', 'COUNT', L.PAGE)
    for _, entry in ipairs(page) do
      local fields = P.flat(entry[2])
      from, seen, bytes = '(' .. entry[1], seen + 1, bytes + (tonumber(fields.size) or 0)
      if L.matches(q, want, fields) then
        visit(entry[1], fields)
        found = found + 1
      end
      if found >= most or seen >= L.SCAN or bytes >= L.BYTES then return from end
    end
    if #page < L.PAGE then return '' end
  end
end

-- Requeues of a request are numbered over all of them: <pool>.<ulid>.<n>.
function L.base(id)
  return string.match(id, '^([^.]+%.[^.]+)') or ''
end

function L.last_number(q, id)
  local own = tonumber(string.match(id, '^[^.]+%.[^.]+%.(%d+)$')) or 0
  return math.max(own, tonumber(redis.call('GET', K.requeues(q, L.base(id)))) or 0)
end

function L.row(q, entry, fields, payload)
  local row = {entry}
  for _, name in ipairs({'id', 'reason', 'class', 'tenant', 'at', 'size', 'meta'}) do
    row[#row + 1] = fields[name] or ''
  end
  row[#row + 1] = fields.id and fields.id ~= '' and L.last_number(q, fields.id) or 0
  row[#row + 1], row[#row + 2] = payload and fields.head or '', payload and fields.body or ''
  return row
end

-- letters(start, most, payload, reason, class, tenant, id, age ms)
-- Guarantee: nothing is changed; a letter that was there all along is met once by calls that go on from
--   each other. At most 200 letters, or about 1 MiB of them, are looked at.
-- KEYS: layout, never.
-- ARGV: where to begin (empty: the newest; entry id; `(` and entry id: after it), most letters, payload
--   0/1, reason, class, tenant, request id (each empty: any), least age in ms.
-- Returns: {letters, where to go on or ''}: letters {entry id, request id, reason, class, tenant, died at
--   ms, bytes, what else is known as JSON, number of its last requeue or 0, head, body}.
-- Flags: no-writes.
local function letters(keys, args)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  local r = P.reader(args)
  local from, most, payload, want = L.read_start(r), P.whole(r), P.whole(r) == 1, L.read_wanted(r)
  wrong = P.refuse(r)
  if wrong then return wrong end
  local rows = {}
  local on = L.each(q, want, from, most, function(entry, fields)
    rows[#rows + 1] = L.row(q, entry, fields, payload)
  end)
  return {rows, on}
end

-- purge(start, reason, class, tenant, id, age ms)
-- Guarantee: the letters that match are gone; no count of the ledger changes. Bounded as `letters`.
-- KEYS: layout, never.
-- ARGV: as letters, without most and payload.
-- Returns: {how many, where to go on or ''}.
-- Flags: allow-oom.
local function purge(keys, args)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  local r = P.reader(args)
  local from, want = L.read_start(r), L.read_wanted(r)
  wrong = P.refuse(r)
  if wrong then return wrong end
  local key, gone = K.dead(q), 0
  local on = L.each(q, want, from, L.SCAN, function(entry, fields)
    P.add(q, 'dead_bytes', -(tonumber(fields.size) or 0))
    gone = gone + redis.call('XDEL', key, entry)
  end)
  if redis.call('XLEN', key) == 0 then redis.call('DEL', key) end
  P.close(q)
  return {gone, on}
end

function L.item(fields, id)
  local meta = cjson.decode(fields.meta)
  return {id = id, class = fields.class, tenant = fields.tenant,
    weight = tonumber(meta.flow_weight),
    timeout = tonumber(meta.timeout), wire = tonumber(meta.wire), model = meta.model,
    limit = tonumber(meta.limit), estimate = tonumber(meta.estimate),
    stream = tonumber(meta.stream), progress = tonumber(meta.progress), detached = 1,
    idempotency = '',
    fingerprint = '', head = fields.head, body = fields.body,
    flow = fields.class .. ':' .. fields.tenant, bytes = #fields.head + #fields.body}
end

-- Why the letter cannot be admitted now, or nil.
function L.refusal(q, fields)
  if (fields.head or '') == '' or (fields.meta or '') == '' then return {'payload', ''} end
  if not P.class_of(q, fields.class) then return {'class', fields.class} end
  if q.clock.draining == '1' then return {'draining', ''} end
  local number = L.last_number(q, fields.id)
  local last = L.base(fields.id) .. '.' .. number
  local state = redis.call('HGET', K.request(q, last), 'state')
  if state and not P.TERMINAL[state] then return {'live', last} end
  if number >= L.MOST then return {'often', ''} end
end

-- requeue(letter)
-- Guarantee: a dead letter is admitted anew, beyond the limits, as <pool>.<ulid>.<n> with a number that
--   none of its requeues had; not while the last of them waits or runs, so that a repeat of a call
--   whose answer was lost admits nothing twice. The letter and the dead record stay.
-- KEYS: layout, never.
-- ARGV: entry id of the letter.
-- Returns: {'ok', new id}, {'live', id of the last requeue}, {'class', class that there is no more}, or with
--   '' 'none' (no such letter), 'payload' (it holds none), 'draining' (the pool), 'often' (9,999 times).
-- Flags: none, as admit.
local function requeue(keys, args)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  local r = P.reader(args)
  local letter = P.word(r)
  wrong = P.refuse(r)
  if wrong then return wrong end
  local found = redis.pcall('XRANGE', K.dead(q), letter, letter)
  if found.err or not found[1] then return {'none', ''} end
  local fields = P.flat(found[1][2])
  local refused = L.refusal(q, fields)
  if refused then return refused end
  local number = L.last_number(q, fields.id) + 1
  local id = L.base(fields.id) .. '.' .. number
  if not A.store(q, L.item(fields, id), '') then return {'none', ''} end
  redis.call('HSET', K.request(q, id), 'retry_of', fields.id)
  redis.call('SET', K.requeues(q, L.base(fields.id)), number, 'PX', L.KEPT_MS)
  P.close(q)
  return {'ok', id}
end

redis.register_function{function_name = 'forebay_letters_@HASH@', callback = letters,
  flags = {'no-writes'}}
redis.register_function{function_name = 'forebay_purge_@HASH@', callback = purge, flags = {'allow-oom'}}
redis.register_function{function_name = 'forebay_requeue_@HASH@', callback = requeue}
