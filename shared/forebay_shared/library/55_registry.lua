-- The workers of the pool, their slots, and the models that they serve.

local G = {}

-- Slots of all workers: the difference where the old number is known, else counted anew.
function G.note_slots(q, worker, slots)
  local old = redis.call('HGET', K.worker(q, worker), 'slots')
  local known = redis.call('ZSCORE', K.workers(q), worker)
  if known and not old then return true end
  P.add(q, 'slots', slots - (tonumber(old) or 0))
  return false
end

function G.count_slots(q)
  local total = 0
  for _, worker in ipairs(redis.call('ZRANGE', K.workers(q), 0, -1)) do
    total = total + (tonumber(redis.call('HGET', K.worker(q, worker), 'slots')) or 0)
  end
  P.set(q, 'slots', total)
end

function G.remove(q, worker)
  redis.call('ZREM', K.workers(q), worker)
  redis.call('DEL', K.worker(q, worker), K.control(q, worker), K.grant(q, worker))
  G.count_slots(q)
end

-- register(worker, state, slots, held, classes, about, n, n x model)
-- Guarantee: the worker is known as alive for worker_ttl, and its models for known_model_ms.
-- KEYS: layout, never.
-- ARGV: worker id, state (serving | draining), slots, requests held, classes as JSON, about as JSON, n,
--   model names.
-- Returns: the settings' epoch.
-- Flags: allow-oom.
local function register(keys, args)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  local r = P.reader(args)
  local worker, state, slots, held = P.word(r), P.word(r), P.number(r), P.number(r)
  local classes, about = P.word(r), P.word(r)
  local models = P.items(r, P.word)
  wrong = P.refuse(r)
  if wrong then return wrong end
  local key = K.worker(q, worker)
  local recount = G.note_slots(q, worker, slots)
  redis.call('HSET', key, 'state', state, 'slots', slots, 'held', held, 'classes', classes,
    'about', about, 'models', #models > 0 and cjson.encode(models) or '[]', 'seen', q.now)
  redis.call('PEXPIRE', key, 10 * q.settings.worker_ttl_ms)
  redis.call('ZADD', K.workers(q), q.now, worker)
  for _, model in ipairs(models) do redis.call('ZADD', K.models(q), q.now, model) end
  if recount then G.count_slots(q) end
  P.close(q)
  return tonumber(redis.call('HGET', K.settings(q), 'epoch'))
end

-- leave(worker)
-- Guarantee: the worker is out of the registry; what it still holds is reclaimed when it runs out.
-- KEYS: layout, never.
-- ARGV: worker id.
-- Returns: 'ok'.
-- Flags: allow-oom.
local function leave(keys, args)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  local r = P.reader(args)
  local worker = P.word(r)
  wrong = P.refuse(r)
  if wrong then return wrong end
  G.remove(q, worker)
  P.close(q)
  return 'ok'
end

redis.register_function{function_name = 'forebay_register_@HASH@', callback = register,
  flags = {'allow-oom'}}
redis.register_function{function_name = 'forebay_leave_@HASH@', callback = leave, flags = {'allow-oom'}}
