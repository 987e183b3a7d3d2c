-- Candidates of a class for a worker: a suspect that it may hold, or the next entry of a flow.

local T = {SCAN = 16, NOBODYS = 9e15}

-- Suspects: a worker with `slots` holds at most max(1, slots/4^c) requests with c or more crashes;
-- one whose cap is 1 is held with no other that has ever crashed.
function T.cap(slots, crashes)
  return math.max(1, math.floor(slots / 4 ^ crashes))
end

function T.held_suspects(q, t)
  if t.suspects then return t.suspects end
  t.suspects = {}
  for field, crashes in pairs(P.flat(redis.call('HGETALL', K.worker(q, t.worker)))) do
    if string.sub(field, 1, 8) == 'suspect:' then
      t.suspects[#t.suspects + 1] = tonumber(crashes)
    end
  end
  return t.suspects
end

function T.may_hold(q, t, crashes)
  local held = T.held_suspects(q, t)
  if #held > 0 and T.cap(t.slots, crashes) == 1 then return false end
  for _, other in ipairs(held) do
    if T.cap(t.slots, other) == 1 then return false end
  end
  for least = 1, crashes do
    local count = 0
    for _, other in ipairs(held) do
      if other >= least then count = count + 1 end
    end
    if count >= T.cap(t.slots, least) then return false end
  end
  return true
end

-- The oldest suspect of the class that this worker may hold now: one look for each kind that waits, so
-- that those whom it may not hold hide none.
function T.suspect(q, t, class)
  local key, from, oldest = K.suspects(q, class), '-inf', nil
  while true do
    local head = redis.call('ZRANGEBYSCORE', key, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    local kind = tonumber(head[2])
    if not kind or math.floor(kind / 1000) > t.wire then break end
    if (not oldest or head[1] < oldest) and T.may_hold(q, t, kind % 1000) then oldest = head[1] end
    from = '(' .. head[2]
  end
  local record = oldest and M.load(q, string.sub(oldest, 18))
  if record or not oldest then return record end
  -- Its record is gone (evicted): the audit finds its entry; until then it must not stand before others.
  redis.call('ZADD', key, 'XX', T.NOBODYS, oldest)
  return T.suspect(q, t, class)
end

-- The flow with the smallest S that is not left for newer workers. Where one is passed over, v stays.
function T.flow(q, t, class)
  local at = 0
  repeat
    local page = redis.call('ZRANGE', K.ready(q, class), at, at + T.SCAN - 1)
    for _, flow in ipairs(page) do
      if not t.newer[flow] then return flow end
      t.passed_over[class] = true
    end
    at = at + T.SCAN
  until #page < T.SCAN
end

-- The wire version of a given-back entry, known without reading its payload again and again.
function T.wire_of(q, class, entry)
  local number = string.match(entry, '^%d+')
  local id = redis.call('ZRANGEBYSCORE', K.waiting(q, class), number, number)[1]
  return id and tonumber(redis.call('HGET', K.request(q, id), 'wire')) or 0
end

-- The next entry of a flow and its fields: given-back ones first, in order of arrival.
function T.read_entry(q, t, class, flow, queue)
  if redis.call('ZSCORE', K.returned(q, class), flow) then
    local row = redis.pcall('XPENDING', queue, P.GROUP, '-', '+', 1, '@returned')
    if not row.err and row[1] then
      if T.wire_of(q, class, row[1][1]) > t.wire then
        t.newer[flow] = true
        return row[1][1], nil
      end
      local got = redis.pcall('XCLAIM', queue, P.GROUP, t.worker, 0, row[1][1])
      if not got.err and got[1] then return got[1][1], got[1][2] end
      redis.pcall('XACK', queue, P.GROUP, row[1][1])
      return row[1][1], nil
    end
  end
  local got = redis.pcall('XREADGROUP', 'GROUP', P.GROUP, t.worker, 'COUNT', 1, 'STREAMS', queue, '>')
  if got and got.err then
    redis.call('XGROUP', 'CREATE', queue, P.GROUP, '0', 'MKSTREAM')
    got = redis.call('XREADGROUP', 'GROUP', P.GROUP, t.worker, 'COUNT', 1, 'STREAMS', queue, '>')
  end
  if not got or not got[1] then return nil end
  return got[1][2][1][1], got[1][2][1][2]
end

-- Nothing can be read though the indexes say otherwise: foreign hands. The index is mended here, the
-- records that lost their entries are found by the audit.
function T.mend_flow(q, class, flow, queue)
  redis.call('ZREM', K.returned(q, class), flow)
  redis.call('ZREM', K.depth(q, class), flow)
  M.drop_bytes(q, class, flow)
  E.drop_empty(q, queue, flow)
  F.close_flow(q, class, flow)
end

-- The record of an entry that was read, or nil where it is not to be granted. One that is not ours is
-- a dead letter; one that is not in the flow's order was read again because foreign hands destroyed
-- the group: its row goes back to its owner.
function T.record_of(q, class, tenant, queue, entry, fields)
  local map = P.flat(fields)
  local record = map.id and map.head and map.body and M.load(q, map.id)
  if not record or P.TERMINAL[record.state] or M.entry(record) ~= entry or record.queue ~= queue then
    E.bury_foreign(q, queue, class, tenant, entry, fields)
  elseif record.place == 'waiting' or record.place == 'returned' then
    return record, map
  else
    M.claim(q, record, M.CONSUMER[record.place] or M.worker_of(record))
  end
  return nil
end

-- A given-back entry was deleted by foreign hands: its record ends, loudly.
function T.lose(q, class, entry)
  local number = string.match(entry, '^(%d+)')
  local id = redis.call('ZRANGEBYSCORE', K.waiting(q, class), number, number)[1]
  local record = id and M.load(q, id)
  if record then E.close(q, record, 'dead', 'lost') end
end

-- An entry whose wire version is newer than the worker's stays for newer workers, at its place.
function T.leave_for_newer(q, t, record)
  t.newer[record.flow] = true
  if record.place == 'waiting' then
    M.count_waiting(q, record, -1)
    redis.call('ZINCRBY', K.returned(q, record.class), 1, record.flow)
    record.place = 'returned'
    M.save(q, record, 'place')
  end
  M.claim(q, record, '@returned')
end

-- One entry of a flow, or nil where something else was done on the way.
function T.next_of_flow(q, t, class, flow)
  local queue, tenant = K.queue(q, flow, 0), string.sub(flow, #class + 2)
  local entry, fields = T.read_entry(q, t, class, flow, queue)
  if t.newer[flow] then return nil end
  if not entry then
    T.mend_flow(q, class, flow, queue)
    return nil
  end
  if not fields then
    T.lose(q, class, entry)
    return nil
  end
  local record, map = T.record_of(q, class, tenant, queue, entry, fields)
  if not record then
    E.drop_empty(q, queue, flow)
    return nil
  end
  if tonumber(record.wire) > t.wire then
    T.leave_for_newer(q, t, record)
    t.bytes, t.left_some = t.bytes + #map.head + #map.body, true
  elseif tonumber(record.deadline) <= q.now then
    E.close(q, record, 'expired', 'deadline')
  else
    return record, map
  end
end

function T.next_suspect(q, t, record)
  local got = redis.pcall('XCLAIM', record.queue, P.GROUP, t.worker, 0, M.entry(record), 'FORCE')
  if got.err and redis.call('EXISTS', record.queue) == 1 then
    redis.pcall('XGROUP', 'CREATE', record.queue, P.GROUP, '0')
    got = redis.pcall('XCLAIM', record.queue, P.GROUP, t.worker, 0, M.entry(record), 'FORCE')
  end
  if got.err or not got[1] then
    E.close(q, record, 'dead', 'lost')
  elseif tonumber(record.deadline) <= q.now then
    E.close(q, record, 'expired', 'deadline')
  else
    return record, P.flat(got[1][2])
  end
end
