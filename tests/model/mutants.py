"""Faults to sow into the library: each must turn a test red. See `mutate.py`."""

from __future__ import annotations

HELD = "record.lease ~= worker .. '/' .. P.text(call) then return false"
GIVEN_BACK = "redis.call('ZADD', K.waiting(q, class), record.entry, record.id)\n"
EXPIRED = "redis.call('ZREM', K.deadlines(q), record.id)\n"
APPEND = "#chunks do\n    redis"
ENDED = "return record.state == one.state and 'ok' or 'lost'"
OVER = "tonumber(record.deadline) <= q.now then\n    E.close(q, record, 'expired', 'deadline')\n"
NO_VICTIMS = "  end\n  return nil\nend\n\nfunction A.newest"

Faults = dict[str, tuple[str, str]]
"""Name → text that stands exactly once in the library, and what takes its place."""

LEASES: Faults = {
    "no_lease_check": (HELD, "false then"),
    "renew_keeps_the_old_end": (
        "redis.call('ZADD', K.leases(q), q.now + q.settings.lease_ms, one.id)\n  M.claim",
        "M.claim",
    ),
    "same_call_grants_anew": ("if t.call == last then", "if false then"),
    "lower_call_grants": ("if t.call < last then return {{}, {}} end", ""),
    "count_not_decremented": (
        "P.add(q, 'running', -1)\n  P.add(q, 'running:' .. record.class, -1)\n  if",
        "if",
    ),
    "a_foreign_row_does_not_fence": ("row[1] == nil or row[1][2] == worker", "true"),
    "a_missing_row_refuses": ("row[1] == nil or row[1][2] == worker",
                              "row[1] ~= nil and row[1][2] == worker"),
    "repeated_finish_is_lost": (ENDED, "return 'lost'"),
    "no_quiet_after_an_outage": ("if q.now < P.get(q, 'quiet', 0) then return false end", ""),
    "clock_back_is_no_outage": ("if last and last <= q.now and q.now", "if last and q.now"),
    "each_gap_begins_the_quiet_anew": ("if gaps < B.GAPS then", "if true then"),
    "a_second_outage_is_none": ("local B = {GAPS = 3}", "local B = {GAPS = 1}"),
    "renewals_show_nothing": ("  B.seen(q)\n  local record", "  local record"),
    "only_sweeps_end_an_outage": (
        "  B.seen(q)\n  local record",
        "  P.set(q, 'seen', q.now)\n  local record",
    ),
    "a_full_sweep_waits": ("if not again then P.set(q, 'reclaimed', q.now) end",
                           "P.set(q, 'reclaimed', q.now)"),
    "consumers_stay": ("if row.err == nil and #row == 0 then", "if false then"),
}  # fmt: skip

FAIRNESS: Faults = {
    "clamp_at_take": ("local start = math.max(a or v,", "local start = math.max(v,"),
    "no_settlement_at_the_end": (
        "worker = M.leave_running(q, record)\n    F.settle(q, record, tonumber(record.used))",
        "worker = M.leave_running(q, record)",
    ),
    "full_refund_at_release": (
        "F.settle(q, record, tonumber(record.used))\n  record.lease = ''",
        "F.settle(q, record, 0)\n  record.lease = ''",
    ),
    "no_charge_at_renew": ("if used > tonumber(record.charged) then", "if false then"),
    "a_retake_charges_whole": ("math.max(0, expected - charged)", "expected"),
    "settled_by_another_weight": ("owed / tonumber(record.flow_weight)", "owed"),
    "v_follows_a_strict_pick": ("if strict then return end\n", ""),
    "v_passes_who_is_behind": ("if one.start < chosen.start then return end", ""),
    "strict_without_cap": ("one.start <= v + burst / one.weight then", "true then"),
    "hoarded_credit": ("if floor - base > chosen.start then", "if false then"),
    "step_of_the_chosen": ("one.start - one.step)", "one.start - lmax / chosen.weight)"),
    "strict_debt_forgiven": ("(one.strict and F.BURST + 1 or 1) * lmax", "lmax"),
    "hoarded_debt": ("if one.start <= most then return end", "if true then return end"),
    "no_lift_at_activation": (
        "redis.call('HSET', K.starts(q, class), flow, a)",
        "redis.call('HSET', K.starts(q, class), flow, 0)",
    ),
    "tags_outlive_the_class": ("redis.call('DEL', K.tags(q, class))", ""),
}  # fmt: skip

BLAME: Faults = {
    "suspects_without_caps": (
        "local held = T.held_suspects(q, t)\n",
        "local held = T.held_suspects(q, t)\n  if true then return true end\n",
    ),
    "a_kind_of_suspects_hides_the_others": ("    from = '(' .. head[2]\n", "    break\n"),
    "suspects_by_kind_not_by_age": (
        "(not oldest or head[1] < oldest) and T.may",
        "not oldest and T.may",
    ),
    "newer_suspects_are_granted": ("if not kind or math.floor(kind / 1000) > t.wire then",
                                   "if not kind then"),
    "a_gone_suspect_stands_before_others": (
        "redis.call('ZADD', key, 'XX', T.NOBODYS, oldest)\n  return T.suspect(q, t, class)",
        "return nil",
    ),
    "a_last_attempt_is_unbounded": (
        "if not H.fits(q, record, one.body) then return",
        "if false then return",
    ),
    "grants_made_again_drain_again": ("and tonumber(record.takes) == 0 then", "then"),
    "a_crash_is_never_solo": ("record.solo = '1' end", "record.solo = 0 end"),
    "crashes_are_not_counted": ("record.crashes = tonumber(record.crashes) + 1", ""),
    "drain_burns_attempts": (
        "M.give_back(q, record, M.home(record))",
        "record.attempts = tonumber(record.attempts) + 1 M.give_back(q, record, M.home(record))",
    ),
    "backoff_does_not_grow": ("2 ^ (record.attempts - 1) * spread", "spread"),
    "given_back_goes_to_the_end": (
        GIVEN_BACK + "    redis.call('ZINCRBY'",
        GIVEN_BACK.replace("record.entry", "P.get(q, 'n', 0) + 1") + "    redis.call('ZINCRBY'",
    ),
    "new_ones_before_given_back": (
        "if redis.call('ZSCORE', K.returned(q, class), flow) then",
        "if redis.call('ZSCORE', K.returned(q, class), flow)\n"
        "    and not redis.call('ZSCORE', K.depth(q, class), flow) then",
    ),
}  # fmt: skip

ADMISSION: Faults = {
    "a_refusal_uses_budget": (
        "one.spending[what] = level - cost\n",
        "one.spending[what] = level - cost\n  A.spend(q, one, what, level - cost)\n",
    ),
    "no_place_kept_for_returners": (
        "return after <= limit.bound - A.kept(q, limit, one)",
        "return after <= limit.bound",
    ),
    "a_refusal_is_not_booked": ("A.set_booked(q, limit, booked)\n", ""),
    "shed_from_the_own_class": (
        "for rank = #q.settings.classes, class.rank + 1, -1 do",
        "for rank = #q.settings.classes, class.rank, -1 do",
    ),
    "shed_the_oldest": ("redis.call('XREVRANGE', K.queue(q, flow, 0), '+', '-',",
                        "redis.call('XRANGE', K.queue(q, flow, 0), '-', '+',"),
    "shed_though_it_does_not_suffice": (NO_VICTIMS, NO_VICTIMS.replace("nil", "list")),
    "given_back_ones_are_shed": ("if record and record.place == 'waiting' and", "if record and"),
    "another_body_is_the_same_request": ("if fingerprint ~= one.fingerprint then", "if false then"),
    "drained_pool_admits": ("if q.clock.draining == '1' then return {'draining', 'pool'",
                            "if false then return {'draining', 'pool'"),
}  # fmt: skip

END: Faults = {
    "the_empty_stream_stays": ("if redis.call('XLEN', queue) > 0 then return false end",
                               "if true then return false end"),
    "deadlines_outlive_requests": (EXPIRED + "  if E", "if E"),
    "cancel_keeps_the_key": ("  else\n    redis.call('DEL', key)\n  end", "  end"),
    "no_news": ("F.rest(q, record.class)\n  M.notify(q, record)", "F.rest(q, record.class)"),
    "no_end_mark": ("if record.stream ~= '1' and tonumber(record.offset) == 0 then return end",
                    "if true then return end"),
    "results_live_for_ever": ("result, 'PX', q.settings.result_ttl_ms)", "result)"),
    "the_worker_is_not_told": ("if worker then M.order(", "if false then M.order("),
}  # fmt: skip

READERS: Faults = {
    "chunks_twice": ("for i = have - offset + 1, " + APPEND, "for i = 1, " + APPEND),
    "a_gap_is_filled": ("if offset > have then return 'gap' end", ""),
    "too_many_watchers": ("while #names > M.WATCHERS do table.remove(names, 1) end", ""),
}  # fmt: skip

TAKE: Faults = {
    "expired_ones_are_granted": (
        "elseif " + OVER + "  else\n    return record, map",
        "else\n    return record, map",
    ),
    "any_wire_version": ("if tonumber(record.wire) > t.wire then", "if false then"),
    "no_limit_per_class": ("if t.free[class] <= 0 then t.eligible[class] = nil end", ""),
    "paused_pool_grants": ("if q.clock.paused ~= '1' then T.grants(q, t) end", "T.grants(q, t)"),
    "a_take_ends_all_on_its_way": (" and did.ended < T.ENDED do", " do"),
    "nobody_goes_on_after_ends": ("if did.ended == T.ENDED or full then", "if full then"),
    "nobody_goes_on_after_the_left": ("if did.ended == T.ENDED or full then",
                                      "if did.ended == T.ENDED then"),
    "left_ones_are_read_again": ("T.wire_of(q, class, row[1][1]) > t.wire", "false"),
    "left_ones_weigh_nothing": ("t.bytes + #map.head + #map.body, true", "t.bytes, true"),
    "no_second_ring": ("elseif t.ring and t.ring[class] then", "elseif false then"),
    "bells_without_bound": ("redis.call('LTRIM', key, 0, P.RINGS - 1)", ""),
}  # fmt: skip

DEAD: Faults = {
    "purged_bytes_still_count": ("P.add(q, 'dead_bytes', -(tonumber(fields.size) or 0))\n    gone",
                                 "gone"),
    "requeued_while_it_waits": (
        "if state and not P.TERMINAL[state] then return {'live', last} end",
        "",
    ),
    "requeue_numbers_repeat": ("redis.call('SET', K.requeues(q, L.base(fields.id)), number,",
                               "redis.call('SET', K.requeues(q, fields.id), 0,"),
    "any_age_is_purged": ("return (tonumber(fields.at) or 0) <= q.now - want.age", "return true"),
    "letters_out_of_bounds": ("if count <= limit.dead_count and", "if count <= 100000 and"),
}  # fmt: skip

GROUPS: tuple[tuple[Faults, tuple[str, ...]], ...] = (
    (
        LEASES,
        (
            "test_reclaim.py",
            "test_renew.py",
            "test_finish.py",
            "test_take.py",
            "test_steps.py",
            "test_release.py",
        ),
    ),
    (
        FAIRNESS,
        (
            "test_fair.py",
            "test_finish.py",
            "test_release.py",
            "test_renew.py",
            "test_take.py",
            "test_sweep.py",
        ),
    ),
    (BLAME, ("test_take.py", "test_release.py")),
    (ADMISSION, ("test_admit.py", "test_cancel.py")),
    (END, ("test_finish.py", "test_cancel.py", "test_reply.py", "test_take.py")),
    (READERS, ("test_emit.py", "test_reply.py", "test_finish.py")),
    (TAKE, ("test_take.py", "test_operator.py")),
    (DEAD, ("test_dead.py",)),
)
"""Faults, and where the tests stand that must see them, below tests/shared/library."""

MUTANTS: Faults = {name: fault for faults, _ in GROUPS for name, fault in faults.items()}


def mutated(text: str, name: str) -> str:
    """The library with the named fault; the library itself where no name is given."""
    if not name:
        return text
    old, new = MUTANTS[name]
    assert text.count(old) == 1, f"{name}: {old!r} must stand once, not {text.count(old)} times"
    return text.replace(old, new)
