-- Who is served next: start-time fair queueing with D requests in service, charged by estimate and
-- settled by what was used (Goyal, Vin, Cheng 1996; Jin, Chase, Kaur 2004), on two levels: classes
-- share the pool, flows (tenants) share their class. For a party f of weight w_f:
--
--   activate   f goes from nothing takeable to takeable      a := v
--   start tag                                                S = max(a, F)
--   take       smallest S among eligible waiting parties     F := S + e/w
--              no waiting party has a smaller S              v := max(v, S)
--   settle     renew (only upwards), end, release, crash     F += (used - charged)/w
--   forget     nothing waits or runs and F <= v              F dropped
--
-- v lifts a party only when it activates: with S = max(v, F) at every take, refunds of a party that
-- stays backlogged would be clipped. Units: tokens of cost; tags are tokens per weight.
-- Of a class, v is pool-wide (`v`), a and F are `a:<class>`, `F:<class>` in the clock; of a flow, v is
-- `v:<class>`, a in `starts`, F in `tags`, S in `ready`.

-- BURST: a strict class goes first while it is at most so many l_max ahead of its share.
local F = {BURST = 2}

-- Class level ------------------------------------------------------------------------------------

function F.class_start(q, name)
  local a = P.get(q, 'a:' .. name, 0)
  return math.max(a, P.get(q, 'F:' .. name, a))
end

-- A class waits while it has a ready flow or a suspect. Activation is the only lift by v.
function F.wake_class(q, name)
  if not q.clock['a:' .. name] then P.set(q, 'a:' .. name, P.get(q, 'v', 0)) end
end

function F.touch_class(q, name)
  if redis.call('ZCARD', K.ready(q, name)) > 0 then return end
  if redis.call('ZCARD', K.suspects(q, name)) > 0 then return end
  if q.clock['a:' .. name] then P.set(q, 'a:' .. name, nil) end
end

-- The waiting classes in order of rank: name, start S, weight w, and `strict`. A strict class has
-- w = cap/(1 - cap) x the weights of the other waiting classes (of all others where none waits).
function F.waiting_classes(q)
  local list, waiting, all = {}, 0, 0
  for _, class in ipairs(q.settings.classes) do
    if not class.strict then all = all + class.weight end
    if q.clock['a:' .. class.name] then
      list[#list + 1] = {name = class.name, start = F.class_start(q, class.name),
        weight = class.weight, strict = class.strict, cap = class.cap}
      if not class.strict then waiting = waiting + class.weight end
    end
  end
  local others = waiting > 0 and waiting or (all > 0 and all or 1)
  for _, one in ipairs(list) do
    if one.strict then one.weight = one.cap / (1 - one.cap) * others end
  end
  return list
end

-- The class to serve among those for which eligible[name] holds: a strict one under its cap
-- (S <= v + 2 l_max/w), else the smallest S; nil where none is eligible.
function F.choose_class(q, list, eligible)
  local v, burst = P.get(q, 'v', 0), F.BURST * P.get(q, 'lmax', 0)
  local best
  for _, one in ipairs(list) do
    if eligible[one.name] then
      if one.strict and one.start <= v + burst / one.weight then return one, true end
      if not best or one.start < best.start then best = one end
    end
  end
  return best, false
end

-- No hoarded credit, no hoarded debt of classes that some workers may not serve. With W the weights of
-- the waiting eligible classes, K what all in service were charged together at most (the refunds that
-- settlement may bring), a party is rightly ahead of the smallest S by at most its own last step
-- d = l_max/w (a strict one by its burst too) and K/W. So the chosen one's a rises to the smallest
-- S - d of the others, less K/W; the others' a and F sink to S_chosen + K/W + d.
-- K is the highest recent level and not D x the mean cost: the first ends are the short ones, and early
-- estimates are too long, so a mean would clip refunds of a pool that has just started. And d is the
-- other's and not the chosen one's: with few in service it is what keeps weights and caps.
function F.bound_windup(q, list, eligible, chosen)
  local total, floor, lmax = 0, nil, P.get(q, 'lmax', 0)
  for _, one in ipairs(list) do
    if eligible[one.name] then
      total = total + one.weight
      one.step = (one.strict and F.BURST + 1 or 1) * lmax / one.weight
      if one ~= chosen then floor = math.min(floor or math.huge, one.start - one.step) end
    end
  end
  if not floor then return end
  local base = P.get(q, 'most_held', 0) / total
  if floor - base > chosen.start then
    P.set(q, 'a:' .. chosen.name, floor - base)
    chosen.start = floor - base
  end
  for _, one in ipairs(list) do
    if eligible[one.name] and one ~= chosen then
      F.sink(q, one, chosen.start + base + one.step)
    end
  end
end

function F.sink(q, one, most)
  if one.start <= most then return end
  P.set(q, 'a:' .. one.name, math.min(P.get(q, 'a:' .. one.name, 0), most))
  P.set(q, 'F:' .. one.name, math.min(P.get(q, 'F:' .. one.name, most), most))
  one.start = most
end

-- F := S + add/w of the class; v follows unless the pick was strict or a waiting class is behind.
function F.charge_class(q, list, chosen, strict, add)
  P.set(q, 'F:' .. chosen.name, chosen.start + add / chosen.weight)
  if strict then return end
  for _, one in ipairs(list) do
    if one.start < chosen.start then return end
  end
  P.set(q, 'v', math.max(P.get(q, 'v', 0), chosen.start))
end

-- Flow level -------------------------------------------------------------------------------------

-- The flow has something takeable: it activates if it had nothing.
function F.open_flow(q, class, flow)
  if redis.call('HEXISTS', K.starts(q, class), flow) == 0 then
    local a = P.get(q, 'v:' .. class, 0)
    local tag = tonumber(redis.call('ZSCORE', K.tags(q, class), flow)) or a
    redis.call('HSET', K.starts(q, class), flow, a)
    redis.call('ZADD', K.ready(q, class), math.max(a, tag), flow)
  end
  F.wake_class(q, class)
end

-- The flow may have nothing takeable any more: it leaves the order.
function F.close_flow(q, class, flow)
  if not redis.call('ZSCORE', K.depth(q, class), flow)
    and not redis.call('ZSCORE', K.returned(q, class), flow) then
    redis.call('ZREM', K.ready(q, class), flow)
    redis.call('HDEL', K.starts(q, class), flow)
  end
  F.touch_class(q, class)
end

-- F := S + add/w of the flow; `first`: it was picked as the smallest S of its class, so v follows.
function F.charge_flow(q, class, flow, weight, add, first)
  local v = P.get(q, 'v:' .. class, 0)
  local a = tonumber(redis.call('HGET', K.starts(q, class), flow))
  local start = math.max(a or v, tonumber(redis.call('ZSCORE', K.tags(q, class), flow)) or 0)
  local tag = start + add / weight
  redis.call('ZADD', K.tags(q, class), tag, flow)
  if a then redis.call('ZADD', K.ready(q, class), tag, flow) end
  if first then P.set(q, 'v:' .. class, math.max(v, start)) end
end

-- F += (used - charged)/w on both levels, with the weights of the charge. Charged becomes used.
function F.settle(q, record, used)
  local owed = used - tonumber(record.charged)
  record.charged = used
  if owed == 0 then return end
  local class, flow = record.class, record.class .. ':' .. record.tenant
  local field = 'F:' .. class
  P.set(q, field, P.get(q, field, P.get(q, 'v', 0)) + owed / tonumber(record.weight))
  local v = P.get(q, 'v:' .. class, 0)
  local tag = (tonumber(redis.call('ZSCORE', K.tags(q, class), flow)) or v)
    + owed / tonumber(record.flow_weight)
  redis.call('ZADD', K.tags(q, class), tag, flow)
  local a = tonumber(redis.call('HGET', K.starts(q, class), flow))
  if a then redis.call('ZADD', K.ready(q, class), math.max(a, tag), flow) end
end

-- l = max(e, u): its maximum, and what is charged to all in service together, `held`, with the highest
-- level that it had. Both maxima decay by a thousandth with each end.
function F.note_held(q, by, length)
  P.add(q, 'held', by)
  P.set(q, 'most_held', math.max(P.get(q, 'most_held', 0), P.get(q, 'held')))
  P.set(q, 'lmax', math.max(P.get(q, 'lmax', 0), length))
end

function F.note_end(q, record)
  P.add(q, 'held', -tonumber(record.charged))
  P.set(q, 'most_held', P.get(q, 'most_held', 0) * 0.999)
  P.set(q, 'lmax', P.get(q, 'lmax', 0) * 0.999)
end

-- A class with nothing queued or running forgets its tags; v goes past the highest, so that a flow
-- that comes back owes nothing and is owed nothing. Likewise the pool and its classes.
function F.rest(q, class)
  if P.get(q, 'queued:' .. class, 0) + P.get(q, 'running:' .. class, 0) > 0 then return end
  local top = redis.call('ZREVRANGE', K.tags(q, class), 0, 0, 'WITHSCORES')
  if top[2] then
    P.set(q, 'v:' .. class, math.max(P.get(q, 'v:' .. class, 0), tonumber(top[2])))
    redis.call('DEL', K.tags(q, class))
  end
  if P.get(q, 'F:' .. class, 0) <= P.get(q, 'v', 0) then P.set(q, 'F:' .. class, nil) end
  if P.get(q, 'queued', 0) + P.get(q, 'running', 0) > 0 then return end
  for _, one in ipairs(q.settings.classes) do
    P.set(q, 'v', math.max(P.get(q, 'v', 0), P.get(q, 'F:' .. one.name, 0)))
    P.set(q, 'F:' .. one.name, nil)
  end
  P.set(q, 'held', nil)
end
