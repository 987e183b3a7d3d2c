-- status: the pool of one moment, for people and for metrics.

function O.oldest_ms(q, class)
  local id = redis.call('ZRANGE', K.waiting(q, class), 0, 0)[1]
  local admitted = id and tonumber(redis.call('HGET', K.request(q, id), 'admitted'))
  return admitted and q.now - admitted or 0
end

function O.class_status(q, class)
  local name = class.name
  return {name = name, weight = class.weight, strict = class.strict, depth = class.depth,
    waiting = redis.call('ZCARD', K.waiting(q, name)),
    suspects = redis.call('ZCARD', K.suspects(q, name)),
    queued = P.get(q, 'queued:' .. name, 0), running = P.get(q, 'running:' .. name, 0),
    flows = redis.call('ZCARD', K.ready(q, name)), oldest_ms = O.oldest_ms(q, name),
    tag = P.get(q, 'F:' .. name, 0), v = P.get(q, 'v:' .. name, 0)}
end

function O.workers_status(q)
  local list = {}
  for _, id in ipairs(redis.call('ZRANGE', K.workers(q), 0, 999)) do
    local one = P.flat(redis.call('HGETALL', K.worker(q, id)))
    list[#list + 1] = {id = id, state = one.state or 'gone', slots = tonumber(one.slots) or 0,
      held = tonumber(one.held) or 0, classes = one.classes or '[]', models = one.models or '[]',
      about = one.about or '{}', seen_ms = q.now - (tonumber(one.seen) or 0)}
  end
  return list
end

-- status()
-- Guarantee: the pool of one moment.
-- KEYS: layout, never.
-- ARGV: none.
-- Returns: JSON: paused, draining, queued, running, delayed, dead, v, slots, drain rate per second,
--   classes, workers (<= 1,000), models, ledger, now_ms.
-- Flags: no-writes.
local function status(keys)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  local value = {paused = q.clock.paused == '1', draining = q.clock.draining == '1',
    queued = P.get(q, 'queued', 0), running = redis.call('ZCARD', K.leases(q)),
    delayed = redis.call('ZCARD', K.delayed(q)), dead = redis.call('XLEN', K.dead(q)),
    v = P.get(q, 'v', 0), slots = P.get(q, 'slots', 0),
    per_second = 1000 * F.drain_rate(q, 'pool'), now_ms = q.now, classes = {},
    models = redis.call('ZRANGE', K.models(q), 0, 999), workers = O.workers_status(q), ledger = {}}
  for i, class in ipairs(q.settings.classes) do value.classes[i] = O.class_status(q, class) end
  for name, count in pairs(P.flat(redis.call('HGETALL', K.ledger(q)))) do
    value.ledger[name] = tonumber(count)
  end
  local text = cjson.encode(value)
  for _, name in ipairs({'workers', 'models'}) do
    if #value[name] == 0 then text = string.gsub(text, '"' .. name .. '":{}', '"' .. name .. '":[]') end
  end
  return text
end

redis.register_function{function_name = 'forebay_status_@HASH@', callback = status,
  flags = {'no-writes'}}
