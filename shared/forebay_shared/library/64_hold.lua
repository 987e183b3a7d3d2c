-- What a worker says of the requests that it holds: renew, emit, finish, release.

local H = {}

function H.usage(r)
  return {prompt = P.whole(r), cached = P.whole(r), output = P.whole(r)}
end

function H.read_chunks(r)
  return P.items(r, function() return {event = P.word(r), resume = P.word(r)} end)
end

function H.read_held(r)
  return {id = P.word(r), call = P.whole(r), usage = H.usage(r)}
end

function H.read_emission(r)
  local one = {id = P.word(r), call = P.whole(r), offset = P.whole(r), usage = H.usage(r)}
  one.chunks = H.read_chunks(r)
  return one
end

function H.read_ending(r)
  local one = {id = P.word(r), call = P.whole(r), state = P.word(r), reason = P.word(r)}
  one.usage, one.head, one.body, one.offset = H.usage(r), P.word(r), P.word(r), P.whole(r)
  one.chunks = H.read_chunks(r)
  if one.state ~= 'done' and one.state ~= 'failed' then r.bad = r.bad or 'a bad final state' end
  return one
end

H.BLAMES = {blameless = true, attempt = true, crashed = true}

function H.read_release(r)
  local one = {id = P.word(r), call = P.whole(r), blame = P.word(r), jitter = P.number(r)}
  one.usage, one.reason, one.head, one.body = H.usage(r), P.word(r), P.word(r), P.word(r)
  if not H.BLAMES[one.blame] then r.bad = r.bad or 'a bad blame' end
  return one
end

-- What all later chunks need too (the prompt's tokens) comes once, before a `;`. It has a key of its own:
-- readers shall not pay for it, and it is of no use after the end.
function H.keep_prompt(q, record, resume)
  local at = string.find(resume, ';', 1, true)
  if not at then return resume end
  if at == 1 then return string.sub(resume, 2) end
  local left = math.max(1000, tonumber(record.deadline) - q.now)
  redis.call('SET', K.prompt(q, record.id), string.sub(resume, 1, at - 1), 'PX',
    left + q.settings.result_ttl_ms)
  return string.sub(resume, at + 1)
end

-- Appends the chunks beyond the record's offset: 'ok', 'gap' (chunks missing before), 'large'.
function H.append(q, record, offset, chunks)
  local have = tonumber(record.offset)
  if offset > have then return 'gap' end
  local bytes = tonumber(record.output)
  for i = have - offset + 1, #chunks do bytes = bytes + #chunks[i].event end
  if bytes > q.settings.result_bytes then return 'large' end
  local key = K.output(q, record.id)
  for i = have - offset + 1, #chunks do
    redis.call('XADD', key, P.text(offset + i) .. '-0',
      'event', chunks[i].event, 'resume', H.keep_prompt(q, record, chunks[i].resume))
  end
  record.offset, record.output = math.max(have, offset + #chunks), bytes
  return 'ok'
end

function H.renew(q, worker, one)
  B.seen(q)
  local record = M.load(q, one.id)
  if not M.held(q, record, worker, one.call) then return 'lost' end
  redis.call('ZADD', K.leases(q), q.now + q.settings.lease_ms, one.id)
  M.claim(q, record, worker)
  local used = M.note_usage(q, record, one.usage)
  if used > tonumber(record.charged) then
    F.note_held(q, used - tonumber(record.charged), used)
    F.settle(q, record, used)
  end
  M.save(q, record, 'used', 'charged')
  return 'ok'
end

function H.emit(q, worker, one)
  local record = M.load(q, one.id)
  if not M.held(q, record, worker, one.call) then return 'lost' end
  local answer = H.append(q, record, one.offset, one.chunks)
  if answer ~= 'ok' then return answer end
  M.note_usage(q, record, one.usage)
  M.save(q, record, 'used', 'offset', 'output')
  M.notify(q, record)
  return 'ok'
end

-- A repeat by the same lease answers as the first did.
function H.ended_before(record, worker, one)
  if not record or record.lease ~= worker .. '/' .. P.text(one.call) then return 'lost' end
  if record.state == 'failed' and record.reason == 'result_too_large' then return 'large' end
  return record.state == one.state and 'ok' or 'lost'
end

-- Whether the answer may be stored, beside the output that is.
function H.fits(q, record, body)
  return #body + tonumber(record.output) <= q.settings.result_bytes
end

function H.end_too_large(q, record)
  record.reason = 'result_too_large'
  E.finish(q, record, 'failed', E.result('failed', record.reason))
end

function H.finish(q, worker, one)
  local record = M.load(q, one.id)
  if not M.held(q, record, worker, one.call) then return H.ended_before(record, worker, one) end
  local answer = H.append(q, record, one.offset, one.chunks)
  if answer == 'gap' then return 'gap' end
  M.note_usage(q, record, one.usage)
  record.used = F.cost(q, one.usage.prompt, one.usage.cached, one.usage.output)
  if answer == 'large' or not H.fits(q, record, one.body) then
    H.end_too_large(q, record)
    return 'large'
  end
  record.reason = one.reason
  if one.state == 'done' then F.learn(q, record, one.usage) end
  E.finish(q, record, one.state, one.head .. '\n' .. one.body)
  return 'ok'
end

-- The engine is well and said no: a delay that doubles, spread by jitter; past the limit it failed.
function H.attempt(q, record, one)
  record.attempts = tonumber(record.attempts) + 1
  if record.attempts >= q.settings.attempts then
    if not H.fits(q, record, one.body) then return H.end_too_large(q, record) end
    record.reason = one.reason
    E.finish(q, record, 'failed', one.head .. '\n' .. one.body)
    return
  end
  local spread = 1 + q.settings.backoff_jitter * math.max(-1, math.min(1, one.jitter))
  local delay = q.settings.backoff_ms * 2 ^ (record.attempts - 1) * spread
  M.give_back(q, record, 'delayed', q.now + math.ceil(delay))
end

function H.release(q, worker, one)
  local record = M.load(q, one.id)
  if not M.held(q, record, worker, one.call) then return 'lost' end
  M.note_usage(q, record, one.usage)
  if one.blame == 'attempt' then
    H.attempt(q, record, one)
  elseif one.blame == 'crashed' then
    B.crash(q, record)
  else
    M.give_back(q, record, M.home(record))
  end
  return record.state
end

-- The shape of renew, emit, finish and release: a worker, items, an answer each.
function H.each(keys, args, read, step)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  local r = P.reader(args)
  local worker = P.word(r)
  local items = P.items(r, read)
  wrong = P.refuse(r)
  if wrong then return wrong end
  local answers = {}
  for i, one in ipairs(items) do answers[i] = step(q, worker, one) end
  P.close(q)
  return answers
end

-- renew(worker, n, n x item)
-- Guarantee: each lease that is still this worker's runs anew from now; tokens so far are charged
--   where they exceed the charge.
-- KEYS: layout, never.
-- ARGV: worker id, n, then per item: id, call, tokens of prompt, cached, output.
-- Returns: per item 'ok' or 'lost'.
-- Flags: allow-oom.
local function renew(keys, args)
  return H.each(keys, args, H.read_held, H.renew)
end

-- emit(worker, n, n x item)
-- Guarantee: chunks beyond the record's offset are appended, once and in order; watchers get news.
-- KEYS: layout, never.
-- ARGV: worker id, n, then per item: id, call, offset (chunks before these), tokens of prompt, cached,
--   output, c, c x (event, resume).
-- Returns: per item 'ok', 'lost', 'gap' (offset is ahead of the record) or 'large' (output too long);
--   nothing is written but for 'ok'.
-- Flags: none, so that Redis refuses it whole at maxmemory; the worker keeps the chunks.
local function emit(keys, args)
  return H.each(keys, args, H.read_emission, H.emit)
end

-- finish(worker, n, n x item)
-- Guarantee: each request ends once, with result, unsent chunks and end mark in the same step; a
--   repeat answers as the first did.
-- KEYS: layout, never.
-- ARGV: worker id, n, then per item: id, call, state (done | failed), reason, tokens of prompt,
--   cached, output, result head, body, offset (chunks before these), c, c x (event, resume).
-- Returns: per item 'ok', 'lost', 'gap', or 'large' (ended as failed, result_too_large).
-- Flags: allow-oom.
local function finish(keys, args)
  return H.each(keys, args, H.read_ending, H.finish)
end

-- release(worker, n, n x item)
-- Guarantee: each request is given back with place, arrival and progress kept and what was used
--   charged; blameless at once, after an attempt with a delay, after a crash as a suspect. Past the
--   limit it ends: failed with the given result, or dead (crash_loop).
-- KEYS: layout, never.
-- ARGV: worker id, n, then per item: id, call, blame (blameless | attempt | crashed), jitter in
--   [-1, 1], tokens of prompt, cached, output, reason, result head, body.
-- Returns: per item the state now (queued, failed, dead) or 'lost'.
-- Flags: allow-oom.
local function release(keys, args)
  return H.each(keys, args, H.read_release, H.release)
end

-- finish_take(worker, n, n x ending, take's arguments)
-- Guarantee: finish, then take, in one step.
-- KEYS: layout, never.
-- ARGV: as finish, then as take.
-- Returns: {finish's answers, take's answer}.
-- Flags: allow-oom.
local function finish_take(keys, args)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  local r = P.reader(args)
  local worker = P.word(r)
  local items = P.items(r, H.read_ending)
  local t = T.read(r)
  wrong = P.refuse(r)
  if wrong then return wrong end
  local answers = {}
  for i, one in ipairs(items) do answers[i] = H.finish(q, worker, one) end
  local taken = T.run(q, t)
  P.close(q)
  return {answers, taken}
end

redis.register_function{function_name = 'forebay_renew_@HASH@', callback = renew, flags = {'allow-oom'}}
redis.register_function{function_name = 'forebay_emit_@HASH@', callback = emit}
redis.register_function{function_name = 'forebay_finish_@HASH@', callback = finish, flags = {'allow-oom'}}
redis.register_function{function_name = 'forebay_release_@HASH@', callback = release, flags = {'allow-oom'}}
redis.register_function{function_name = 'forebay_finish_take_@HASH@', callback = finish_take,
  flags = {'allow-oom'}}
