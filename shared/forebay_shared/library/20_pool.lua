-- The pool as one call sees it: layout checked, time read, settings and clock loaded once and the
-- clock written once at the end. Also: reading arguments, whole or not at all.

local P = {LAYOUT = '1', GROUP = 'workers', RINGS = 64, cached = {}}

P.TERMINAL = {done = true, failed = true, cancelled = true, expired = true, shed = true, dead = true}

-- For settings written before a number existed; the defaults of settings.py.
P.DEFAULTS = {
  lease_ms = 15000, sweep_ms = 1000, reclaim_ms = 5000, worker_ttl_ms = 30000, depth = 10000,
  tenant_bytes = 67108864, kept_share = 0.2, retry_clamp_ms = 60000, result_bytes = 16777216,
  attempts = 3, backoff_ms = 1000, backoff_jitter = 0.2, solo_crashes = 2, result_ttl_ms = 3600000,
  tombstone_ms = 600000, idempotency_ttl_ms = 86400000, known_model_ms = 86400000,
  dead_count = 10000, dead_bytes = 67108864,
}

function P.flat(list)
  local map = {}
  for i = 1, #list, 2 do map[list[i]] = list[i + 1] end
  return map
end

-- Settings decoded once per text: comparing two interned strings is comparing two pointers.
function P.decode_settings(prefix, text)
  local known = P.cached[prefix]
  if known and known.text == text then return known.value end
  local value = cjson.decode(text)
  for name, default in pairs(P.DEFAULTS) do
    if value[name] == nil then value[name] = default end
  end
  value.by_name = {}
  for rank, class in ipairs(value.classes) do
    class.rank = rank
    value.by_name[class.name] = class
  end
  P.cached[prefix] = {text = text, value = value}
  return value
end

function P.now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- The pool's context, or nil and the error reply: every function compares the layout first.
function P.open(keys)
  local layout = redis.call('GET', keys[1])
  local q = {prefix = string.sub(keys[1], 1, -7), dirty = {}, rings = {}}
  local text = layout and redis.call('HGET', K.settings(q), 'json')
  if not text then return nil, redis.error_reply('NOLAYOUT this pool has not been founded') end
  if layout ~= P.LAYOUT then
    return nil, redis.error_reply('LAYOUT the stored keys have layout ' .. layout
      .. ', this library knows ' .. P.LAYOUT)
  end
  q.now = P.now_ms()
  q.settings = P.decode_settings(q.prefix, text)
  q.clock = P.flat(redis.call('HGETALL', K.clock(q)))
  return q
end

function P.get(q, field, default)
  return tonumber(q.clock[field]) or default
end

function P.set(q, field, value)
  q.clock[field] = value
  q.dirty[field] = true
end

function P.add(q, field, by)
  P.set(q, field, P.get(q, field, 0) + by)
end

-- Writes what changed in the clock, and rings; the last step of every writing function.
function P.close(q)
  P.ring_all(q)
  local set, gone = {}, {}
  for field in pairs(q.dirty) do
    local value = q.clock[field]
    if value == nil then
      gone[#gone + 1] = field
    else
      set[#set + 1] = field
      set[#set + 1] = value
    end
  end
  if #set > 0 then redis.call('HSET', K.clock(q), unpack(set)) end
  if #gone > 0 then redis.call('HDEL', K.clock(q), unpack(gone)) end
end

-- Wake-ups are kept until the end of the call, so that many cost one command a class.
function P.ring_all(q)
  for class, count in pairs(q.rings) do
    local key, tokens = K.bell(q, class), {}
    for i = 1, math.min(count, P.RINGS) do tokens[i] = '1' end
    if redis.call('RPUSH', key, unpack(tokens)) > P.RINGS then
      redis.call('LTRIM', key, 0, P.RINGS - 1)
    end
  end
end

-- A whole number as text: Lua would print 14 digits.
function P.text(number)
  return string.format('%.0f', number)
end

function P.class_of(q, name)
  return q.settings.by_name[name]
end

-- Arguments in order. The first bad one is noted; functions check `bad` before their first write.
function P.reader(args)
  return {args = args, at = 0, bad = nil}
end

function P.word(r)
  r.at = r.at + 1
  local value = r.args[r.at]
  if value == nil then r.bad = r.bad or ('argument ' .. r.at .. ' is missing') end
  return value or ''
end

function P.number(r)
  local value = tonumber(P.word(r))
  if value == nil or value ~= value or value > 9e15 or value < -9e15 then
    r.bad = r.bad or ('argument ' .. r.at .. ' is not a number')
    return 0
  end
  return value
end

-- What is counted: whole and not negative.
function P.whole(r)
  local value = P.number(r)
  if value < 0 or value ~= math.floor(value) then
    r.bad = r.bad or ('argument ' .. r.at .. ' is not a whole number')
    return 0
  end
  return value
end

-- How many items follow: at most 100 a call.
function P.count(r)
  local count = P.number(r)
  if count > 100 or count < 0 or count ~= math.floor(count) then
    r.bad = r.bad or ('argument ' .. r.at .. ' is not a count of at most 100')
    return 0
  end
  return count
end

function P.items(r, read)
  local list = {}
  for i = 1, P.count(r) do
    if r.bad then break end
    list[i] = read(r)
  end
  return list
end

function P.refuse(r)
  if r.at < #r.args then r.bad = r.bad or 'too many arguments' end
  return r.bad and redis.error_reply('BADCALL ' .. r.bad)
end
