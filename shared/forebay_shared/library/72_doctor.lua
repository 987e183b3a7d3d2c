-- What the doctor asks of a pool, and which commands this user may not call.

-- STREAMS: most streams that one call counts, so that it stays below 5 ms.
local D = {STREAMS = 2000}

O.PROBES[#O.PROBES + 1] = {'PTTL'}

-- Entries in all streams; nothing where there are too many to count in one call.
function D.entries(q)
  if redis.call('ZCARD', K.flows(q)) > D.STREAMS then return nil end
  local total = 0
  for _, flow in ipairs(redis.call('ZRANGE', K.flows(q), 0, -1)) do
    total = total + redis.call('XLEN', K.queue(q, flow, 0))
  end
  return total
end

-- Places of waiting requests, and the counters of the clock, over all classes.
function D.places(q)
  local sum = {waiting = 0, suspects = 0, queued_of_classes = 0, running_of_classes = 0}
  for _, class in ipairs(q.settings.classes) do
    sum.waiting = sum.waiting + redis.call('ZCARD', K.waiting(q, class.name))
    sum.suspects = sum.suspects + redis.call('ZCARD', K.suspects(q, class.name))
    sum.queued_of_classes = sum.queued_of_classes + P.get(q, 'queued:' .. class.name, 0)
    sum.running_of_classes = sum.running_of_classes + P.get(q, 'running:' .. class.name, 0)
  end
  return sum
end

function D.ended(ledger)
  local total = 0
  for state in pairs(P.TERMINAL) do total = total + (tonumber(ledger[state]) or 0) end
  return total
end

-- counts()
-- Guarantee: all numbers are of one moment, so that the pool's identities must hold between them.
-- KEYS: layout, never.
-- ARGV: none.
-- Returns: JSON: now_ms, swept_ms (0: never), accepted, ended, undecodable, queued, running, leases,
--   waiting, suspects, delayed, deadlines, queued_of_classes, running_of_classes, entries (absent
--   where there are more than 2,000 flows).
-- Flags: no-writes.
local function counts(keys, args)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  wrong = P.refuse(P.reader(args))
  if wrong then return wrong end
  local ledger, found = P.flat(redis.call('HGETALL', K.ledger(q))), D.places(q)
  found.now_ms, found.swept_ms = q.now, P.get(q, 'swept', 0)
  found.accepted, found.ended = tonumber(ledger.accepted) or 0, D.ended(ledger)
  found.undecodable = tonumber(ledger.undecodable) or 0
  found.queued, found.running = P.get(q, 'queued', 0), P.get(q, 'running', 0)
  found.leases = redis.call('ZCARD', K.leases(q))
  found.delayed = redis.call('ZCARD', K.delayed(q))
  found.deadlines = redis.call('ZCARD', K.deadlines(q))
  found.entries = D.entries(q)
  return cjson.encode(found)
end

-- Keys without TTL, by the first word of their names. What is not listed here ought to have one.
D.ALWAYS = {layout = true, clock = true, settings = true, ledger = true, models = true, workers = true,
  dead = true, bell = true}
D.WITH_WORK = {flows = true, leases = true, delayed = true, deadlines = true}
D.WITH_CLASS = {ready = true, starts = true, tags = true, waiting = true, suspects = true, depth = true,
  sizes = true, returned = true}

function D.is_live(q, id)
  return redis.call('ZSCORE', K.deadlines(q), id)
end

D.WITH = {request = D.is_live, output = D.is_live}

function D.WITH.queue(q, name)
  return redis.call('ZSCORE', K.flows(q), string.match(name, '^(.*):[^:]*$') or '')
end

function D.WITH.idempotency(q, name)
  local value = redis.pcall('GET', K.idempotency(q, name))
  return type(value) == 'string' and D.is_live(q, string.match(value, '^[^|]*'))
end

-- Whether somebody still needs a key that has no TTL.
function D.is_needed(q, kind, name)
  if D.WITH_WORK[kind] then return P.get(q, 'queued', 0) + P.get(q, 'running', 0) > 0 end
  if D.WITH_CLASS[kind] then
    return P.get(q, 'queued:' .. name, 0) + P.get(q, 'running:' .. name, 0) > 0
  end
  return D.ALWAYS[kind] or D.WITH[kind] and D.WITH[kind](q, name)
end

D.OF_REQUEST = {result = true, output = true, prompt = true}

-- Why nobody will miss this key, or nil.
function D.why_leaked(q, key)
  local kind, name = string.match(string.sub(key, #q.prefix + 1), '^([^:]*):?(.*)$')
  local ttl = redis.call('PTTL', key)
  if ttl == -1 then
    return not D.is_needed(q, kind, name) and 'no TTL, and nothing needs it' or nil
  end
  if ttl > 0 and D.OF_REQUEST[kind] and redis.call('EXISTS', K.request(q, name)) == 0 then
    return 'the record of its request is gone'
  end
end

-- leaked(n, n x key)
-- Guarantee: which of these keys no live request, class or process needs, though they have no TTL; and
--   which results and outputs have lost their request's record. Of one moment.
-- KEYS: layout, never.
-- ARGV: n, whole names of keys of this pool.
-- Returns: {key, why, ...}.
-- Flags: no-writes.
local function leaked(keys, args)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  local r = P.reader(args)
  local names = P.items(r, P.word)
  for _, key in ipairs(names) do
    if string.sub(key, 1, #q.prefix) ~= q.prefix then r.bad = r.bad or 'a key of another pool' end
  end
  wrong = P.refuse(r)
  if wrong then return wrong end
  local found = {}
  for _, key in ipairs(names) do
    local why = D.why_leaked(q, key)
    if why then
      found[#found + 1] = key
      found[#found + 1] = why
    end
  end
  return found
end

-- Every probe of selftest once, whatever becomes of those before it.
function D.probe_all(key, note)
  for _, probe in ipairs(O.PROBES) do
    local line = {probe[1], key}
    for i = 2, #probe do line[i + 1] = probe[i] end
    note(probe[1], redis.pcall(unpack(line)))
  end
  redis.pcall('XADD', key, '1-0', 'a', 'b')
  note('XGROUP|CREATE', redis.pcall('XGROUP', 'CREATE', key, P.GROUP, '0'))
  note('XINFO|STREAM', redis.pcall('XINFO', 'STREAM', key))
  note('XREADGROUP', redis.pcall('XREADGROUP', 'GROUP', P.GROUP, 'a', 'COUNT', 1, 'STREAMS', key, '>'))
  note('XPENDING', redis.pcall('XPENDING', key, P.GROUP))
  note('XCLAIM', redis.pcall('XCLAIM', key, P.GROUP, 'b', 0, '1-0', 'FORCE', 'JUSTID'))
  note('XACK', redis.pcall('XACK', key, P.GROUP, '1-0'))
  note('XGROUP|DELCONSUMER', redis.pcall('XGROUP', 'DELCONSUMER', key, P.GROUP, 'b'))
  note('XDEL', redis.pcall('XDEL', key, '1-0'))
end

-- rights()
-- Guarantee: every command that the library calls was tried on a scratch key, which is gone again where
--   this user may delete it; unlike selftest it goes on after an error, and so finds all that fail.
-- KEYS: layout, never.
-- ARGV: none.
-- Returns: {command, error, ...} of those that fail, as selftest's order has it.
-- Flags: allow-oom.
local function rights(keys)
  local q, failed, seen = {prefix = string.sub(keys[1], 1, -7)}, {}, {}
  local function note(command, reply)
    if type(reply) ~= 'table' or not reply.err or seen[command] then return end
    seen[command] = true
    failed[#failed + 1] = command
    failed[#failed + 1] = reply.err
  end
  local layout = redis.pcall('GET', keys[1])
  if type(layout) ~= 'table' then
    if not layout then return redis.error_reply('NOLAYOUT this pool has not been founded') end
    if layout ~= P.LAYOUT then return redis.error_reply('LAYOUT the stored keys have layout ' .. layout) end
  end
  redis.pcall('DEL', K.scratch(q))
  note('TIME', redis.pcall('TIME'))
  D.probe_all(K.scratch(q), note)
  redis.pcall('DEL', K.scratch(q))
  return failed
end

redis.register_function{function_name = 'forebay_counts_@HASH@', callback = counts,
  flags = {'no-writes'}}
redis.register_function{function_name = 'forebay_leaked_@HASH@', callback = leaked,
  flags = {'no-writes'}}
redis.register_function{function_name = 'forebay_rights_@HASH@', callback = rights,
  flags = {'allow-oom'}}
