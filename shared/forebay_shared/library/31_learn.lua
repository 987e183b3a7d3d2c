-- What is learned: how long requests are, and how fast queues empty.

F.AVERAGE_MS, F.YOUNG_MS = 30000, 1000
F.COLD_OUTPUT, F.COLD_RATIO, F.LEARN = 256, 0.25, 0.1

-- Tokens of cost (settings: prompt 1, cached 0.1, output 2).
function F.cost(q, prompt, cached, output)
  local price = q.settings.cost
  local known = math.min(cached, prompt)
  return (prompt - known) * price.prompt + known * price.cached + output * price.output
end

function F.average(q, field, value)
  local was = P.get(q, field, value)
  P.set(q, field, was + F.LEARN * (value - was))
end

-- e: what a request is expected to cost. Output is learned by flow and model (a tenant's batch work is
-- unlike its chat) and capped by what the request allows; a new flow starts from its class's mean.
-- Prompt tokens come from the body's bytes, calibrated likewise.
function F.estimate(q, record)
  local learned = redis.call('HMGET', K.usage(q, record.tenant),
    'ratio:' .. record.model, 'output:' .. record.class .. ':' .. record.model)
  local prompt = tonumber(record.bytes) * (tonumber(learned[1]) or P.get(q, 'ratio', F.COLD_RATIO))
  local output = tonumber(record.estimate)
  local limit = tonumber(record.limit)
  if output < 0 then
    output = tonumber(learned[2]) or P.get(q, 'output:' .. record.class, F.COLD_OUTPUT)
    if limit >= 0 then output = math.min(output, limit) end
  end
  return F.cost(q, prompt, 0, output)
end

function F.learn(q, record, usage)
  if usage.output > 0 then F.average(q, 'output:' .. record.class, usage.output) end
  F.average(q, 'ratio', usage.prompt / math.max(1, tonumber(record.bytes)))
  local key = K.usage(q, record.tenant)
  local ratio, output = 'ratio:' .. record.model, 'output:' .. record.class .. ':' .. record.model
  local known = redis.call('HMGET', key, ratio, output, 'requests', 'prompt', 'output')
  local seen = usage.prompt / math.max(1, tonumber(record.bytes))
  local was_ratio, was_output = tonumber(known[1]) or seen, tonumber(known[2]) or usage.output
  redis.call('HSET', key, ratio, was_ratio + F.LEARN * (seen - was_ratio),
    output, was_output + F.LEARN * (usage.output - was_output),
    'requests', (tonumber(known[3]) or 0) + 1, 'prompt', (tonumber(known[4]) or 0) + usage.prompt,
    'output', (tonumber(known[5]) or 0) + usage.output)
  redis.call('PEXPIRE', key, 35 * 86400000)
end

-- Drain rates ------------------------------------------------------------------------------------
-- How fast a limit's queue empties: an average over 30 s that forgets exponentially, corrected for
-- its own youth; in units of the limit per ms.

function F.drained(q, limit, amount)
  local was, at = P.get(q, 'rate:' .. limit, 0), P.get(q, 'rated:' .. limit, q.now)
  local kept = was * math.exp(-math.max(0, q.now - at) / F.AVERAGE_MS)
  P.set(q, 'rate:' .. limit, kept + amount / F.AVERAGE_MS)
  P.set(q, 'rated:' .. limit, q.now)
  if not q.clock['since:' .. limit] then P.set(q, 'since:' .. limit, q.now) end
end

function F.drain_rate(q, limit)
  local since = P.get(q, 'since:' .. limit)
  if not since then return 0 end
  local at = P.get(q, 'rated:' .. limit, q.now)
  local rate = P.get(q, 'rate:' .. limit, 0) * math.exp(-math.max(0, q.now - at) / F.AVERAGE_MS)
  return rate / (1 - math.exp(-math.max(F.YOUNG_MS, q.now - since) / F.AVERAGE_MS))
end
