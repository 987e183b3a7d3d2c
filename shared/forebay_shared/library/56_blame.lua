-- Who is blamed when a lease runs out, and when nobody is.
--
-- A lease that has run out is a crash of its worker, unless nobody could renew: Redis did not answer,
-- or its clock was set. The library sees that by a gap between the calls that reach it, `renew` and
-- `sweep`: whoever ends a gap gives all leases one lease of quiet to be renewed in. A gap of a third of
-- a lease costs no lease that is renewed each third, so shorter ones say nothing.
-- Where gaps recur, nobody renews: no living worker holds anything, or Redis comes and goes. So at most
-- GAPS of them in a row begin the quiet anew, and then leases are taken back however the calls come.

local B = {GAPS = 3}

-- Called by whoever shows that Redis can be reached: before anything is taken back.
function B.seen(q)
  local last, settings = P.get(q, 'seen'), q.settings
  P.set(q, 'seen', q.now)
  local most = math.min(3 * settings.sweep_ms, settings.lease_ms / 3)
  if last and last <= q.now and q.now - last <= most then return end
  local gaps, until_ms = P.get(q, 'gaps', 0), q.now + settings.lease_ms
  if gaps < B.GAPS then
    P.set(q, 'gaps', gaps + 1)
    P.set(q, 'quiet', until_ms)
  else
    P.set(q, 'quiet', math.min(until_ms, P.get(q, 'quiet', 0))) -- earlier where the clock went back
  end
end

-- Whether leases that have run out may be taken back; that ends a row of gaps.
function B.may_reclaim(q)
  if q.now < P.get(q, 'quiet', 0) then return false end
  P.set(q, 'gaps', nil)
  return true
end

-- A crash: charged to every request that the worker held; solo where no other suspect was beside.
function B.crash(q, record)
  record.crashes = tonumber(record.crashes) + 1
  if record.solo == '1' then record.solos = tonumber(record.solos) + 1 end
  if tonumber(record.solos) >= q.settings.solo_crashes then
    record.reason = 'crash_loop'
    E.finish(q, record, 'dead', E.result('dead', 'crash_loop'))
  else
    M.give_back(q, record, 'suspect')
  end
end
