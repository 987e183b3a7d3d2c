-- What operators call, and what every process calls once: found, selftest.

local O = {}

-- Settings that the library can work with, or nil. Their relations are checked by who writes them.
function O.settings_in(text)
  local decoded, value = pcall(cjson.decode, text)
  if not decoded or type(value) ~= 'table' or type(value.classes) ~= 'table' then return nil end
  if #value.classes == 0 or type(value.cost) ~= 'table' then return nil end
  for name in pairs(P.DEFAULTS) do
    if value[name] ~= nil and type(value[name]) ~= 'number' then return nil end
  end
  for _, class in ipairs(value.classes) do
    if type(class) ~= 'table' or type(class.name) ~= 'string' then return nil end
    if type(class.weight) ~= 'number' or type(class.depth) ~= 'number' then return nil end
  end
  return value
end

-- found(settings)
-- Guarantee: a pool without layout gets it, with these settings at epoch 1; one that has it is left as
--   it is, or refused where its layout is another.
-- KEYS: layout, never.
-- ARGV: settings as JSON.
-- Returns: 'ok'.
-- Flags: allow-oom.
local function found(keys, args)
  local q = {prefix = string.sub(keys[1], 1, -7)}
  if not O.settings_in(args[1]) then return redis.error_reply('BADCALL these are no settings') end
  redis.call('SET', keys[1], P.LAYOUT, 'NX')
  local layout = redis.call('GET', keys[1])
  if layout ~= P.LAYOUT then
    return redis.error_reply('LAYOUT the stored keys have layout ' .. layout
      .. ', this library knows ' .. P.LAYOUT)
  end
  if redis.call('HSETNX', K.settings(q), 'json', args[1]) == 1 then
    redis.call('HSETNX', K.settings(q), 'epoch', 1)
  end
  redis.call('HSETNX', K.ledger(q), 'accepted', 0)
  return 'ok'
end

O.PROBES = {
  {'SET', '1', 'NX', 'PX', '1000'}, {'GET'}, {'EXISTS'}, {'PEXPIRE', '1000'}, {'DEL'},
  {'HSET', 'a', '1'}, {'HSETNX', 'b', '1'}, {'HGET', 'a'}, {'HMGET', 'a', 'b'}, {'HGETALL'},
  {'HEXISTS', 'a'}, {'HINCRBY', 'a', '1'}, {'HINCRBYFLOAT', 'a', '1'}, {'HDEL', 'a'}, {'DEL'},
  {'ZADD', '1', 'a'}, {'ZINCRBY', '1', 'a'}, {'ZSCORE', 'a'}, {'ZCARD'}, {'ZRANK', 'a'},
  {'ZCOUNT', '-inf', '+inf'}, {'ZRANGE', '0', '-1'}, {'ZREVRANGE', '0', '0', 'WITHSCORES'},
  {'ZRANGEBYSCORE', '-inf', '+inf', 'LIMIT', '0', '1'}, {'ZRANGEBYLEX', '-', '+', 'LIMIT', '0', '1'},
  {'ZREMRANGEBYSCORE', '-inf', '-1'}, {'ZREMRANGEBYRANK', '0', '-10'}, {'ZREM', 'a'}, {'DEL'},
  {'RPUSH', 'a'}, {'LTRIM', '0', '63'}, {'LRANGE', '0', '-1'}, {'DEL'},
  {'XADD', '1-0', 'a', 'b'}, {'XLEN'}, {'XRANGE', '-', '+', 'COUNT', '1'},
  {'XREVRANGE', '+', '-', 'COUNT', '1'},
}

-- Group commands on the scratch stream, with the key where each wants it.
function O.probe_group(key)
  redis.call('XGROUP', 'CREATE', key, P.GROUP, '0')
  redis.call('XINFO', 'STREAM', key)
  redis.call('XREADGROUP', 'GROUP', P.GROUP, 'a', 'COUNT', 1, 'STREAMS', key, '>')
  redis.call('XPENDING', key, P.GROUP)
  redis.call('XCLAIM', key, P.GROUP, 'b', 0, '1-0', 'FORCE', 'JUSTID')
  redis.call('XACK', key, P.GROUP, '1-0')
  redis.call('XGROUP', 'DELCONSUMER', key, P.GROUP, 'b')
  redis.call('XDEL', key, '1-0')
end

-- selftest()
-- Guarantee: every command that the library calls was called on a scratch key, which is gone again; an
--   ACL user who may not call one learns it here and not midway.
-- KEYS: layout, never.
-- ARGV: none.
-- Returns: 'ok', or the first error.
-- Flags: allow-oom.
local function selftest(keys)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  local key = K.scratch(q)
  redis.call('DEL', key)
  for _, probe in ipairs(O.PROBES) do
    local line = {probe[1], key}
    for i = 2, #probe do line[i + 1] = probe[i] end
    redis.call(unpack(line))
  end
  O.probe_group(key)
  redis.call('DEL', key)
  return 'ok'
end

-- switch(paused, draining)
-- Guarantee: both switches are set as told; a resumed pool rings its waiting classes.
-- KEYS: layout, never.
-- ARGV: paused '1', '0' or '' (as it is), draining likewise.
-- Returns: 'ok'.
-- Flags: allow-oom.
local function switch(keys, args)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  local r = P.reader(args)
  local paused, draining = P.word(r), P.word(r)
  wrong = P.refuse(r)
  if wrong then return wrong end
  if paused ~= '' then P.set(q, 'paused', paused == '1' and '1' or nil) end
  if draining ~= '' then P.set(q, 'draining', draining == '1' and '1' or nil) end
  if paused == '0' then S.ring_waiting(q) end
  P.close(q)
  return 'ok'
end

-- settings()
-- Guarantee: the settings and their epoch, of one moment.
-- KEYS: layout, never.
-- ARGV: none.
-- Returns: {settings as JSON, epoch}.
-- Flags: no-writes.
local function settings(keys)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  return redis.call('HMGET', K.settings(q), 'json', 'epoch')
end

-- The first class that would go though it has requests, or nil.
function O.class_in_use(q, wanted)
  local stays = {}
  for _, class in ipairs(wanted.classes) do stays[class.name] = true end
  for _, class in ipairs(q.settings.classes) do
    local live = P.get(q, 'queued:' .. class.name, 0) + P.get(q, 'running:' .. class.name, 0)
    if live > 0 and not stays[class.name] then return class.name end
  end
end

-- configure(settings, epoch)
-- Guarantee: the settings are stored only over the epoch that their author read; a class with requests
--   stays. Waiting classes are rung.
-- KEYS: layout, never.
-- ARGV: settings as JSON, epoch.
-- Returns: {'ok', new epoch}, {'changed', stored epoch} or {'used', class}.
-- Flags: allow-oom.
local function configure(keys, args)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  local r = P.reader(args)
  local text, epoch = P.word(r), P.number(r)
  wrong = P.refuse(r)
  if wrong then return wrong end
  local wanted = O.settings_in(text)
  if not wanted then return redis.error_reply('BADCALL these are no settings') end
  local stored = tonumber(redis.call('HGET', K.settings(q), 'epoch'))
  if stored ~= epoch then return {'changed', stored} end
  local used = O.class_in_use(q, wanted)
  if used then return {'used', used} end
  redis.call('HSET', K.settings(q), 'json', text, 'epoch', epoch + 1)
  S.ring_waiting(q)
  P.close(q)
  return {'ok', epoch + 1}
end

-- order(worker, text)
-- Guarantee: the worker finds the order in its control list, which lives for a minute.
-- KEYS: layout, never.
-- ARGV: worker id, order.
-- Returns: 'ok'.
-- Flags: allow-oom.
local function order(keys, args)
  local q, wrong = P.open(keys)
  if not q then return wrong end
  local r = P.reader(args)
  local worker, text = P.word(r), P.word(r)
  wrong = P.refuse(r)
  if wrong then return wrong end
  M.order(q, worker, text)
  return 'ok'
end

redis.register_function{function_name = 'forebay_found_@HASH@', callback = found,
  flags = {'allow-oom'}}
redis.register_function{function_name = 'forebay_selftest_@HASH@', callback = selftest,
  flags = {'allow-oom'}}
redis.register_function{function_name = 'forebay_switch_@HASH@', callback = switch,
  flags = {'allow-oom'}}
redis.register_function{function_name = 'forebay_settings_@HASH@', callback = settings,
  flags = {'no-writes'}}
redis.register_function{function_name = 'forebay_configure_@HASH@', callback = configure,
  flags = {'allow-oom'}}
redis.register_function{function_name = 'forebay_order_@HASH@', callback = order, flags = {'allow-oom'}}
