"""Named mistakes in library, worker and producer: each must turn a test red. See `sow.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.model.mutants import GROUPS

LIBRARY = "shared/forebay_shared/library/*.lua"
LEASES = "shared/forebay_shared/calls/leases.py"
WORKER = "worker/forebay_worker"
PRODUCER = "producer/forebay_producer"


@dataclass(frozen=True)
class Edit:
    """Text that stands exactly once in the files of `path`, and what takes its place."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Mistake:
    """What is changed, and the tests of which one must fail then."""

    edits: Sequence[Edit]
    tests: Sequence[str]


def lua(old: str, new: str, *tests: str) -> Mistake:
    return Mistake([Edit(LIBRARY, old, new)], [f"tests/shared/library/{name}" for name in tests])


def python(path: str, old: str, new: str, *tests: str) -> Mistake:
    return Mistake([Edit(path, old, new)], [f"tests/{name}" for name in tests])


ADDED_AGAIN = """  if place == 'returned' then
    local at = M.entry(record)
    local fields = redis.call('XRANGE', record.queue, at, at)[1][2]
    redis.call('XACK', record.queue, P.GROUP, at)
    redis.call('XDEL', record.queue, at)
    P.add(q, 'n', 1)
    record.entry, record.place = P.get(q, 'n'), 'waiting'
    redis.call('XADD', record.queue, P.text(record.entry) .. '-0', unpack(fields))
    redis.call('HSET', K.request(q, record.id), 'entry', record.entry)
    redis.call('ZADD', K.waiting(q, class), record.entry, record.id)
    M.count_waiting(q, record, 1)
    M.ring(q, class)
    return F.open_flow(q, class, record.flow)
  end
"""
ACKED_FIRST = """  redis.pcall('XACK', record.queue, P.GROUP, M.entry(record))
  redis.call('XDEL', record.queue, M.entry(record))
"""
APPENDED = "  local answer = H.append(q, record, one.offset, one.chunks)\n  if answer == 'gap'"
COUNTED = """        key = self._library.keys.layout.replace("layout", "ledger")
        for one in endings:
            await self._library.redis.hincrby(key, one.result.state, 1)
"""
FINISHED = 'return _answers(await self._library.call("finish", worker, *_endings(endings)))'
FINISHED_TAKEN = "return _answers(answers), _taken(taken)"
GATHERED = "            batch.append(item)\n        return batch"
FORGOTTEN = "for _ in batch:\n            self._endings.popleft()\n        return batch"
LEFT = "            self._endings.popleft()\n            if"
ONCE_MORE = (
    "            # A connection that died while idle. Idempotent by request id, so once more.\n"
)
ANOTHER_ID = """            from dataclasses import replace

            admissions = [replace(one, request_id=f"{one.request_id}.1") for one in admissions]
"""
CREATED = "redis.call('XGROUP', 'CREATE', queue, P.GROUP, '0')\n    redis.call('ZADD', K.flows"
SUSPECTS_GROUP = "redis.pcall('XGROUP', 'CREATE', record.queue, P.GROUP, '0')"
HELD_AT_FINISH = "if not M.held(q, record, worker, one.call) then return H.ended_before"

NAMED: dict[str, Mistake] = {
    "no lease check in finish": lua(
        HELD_AT_FINISH,
        "if not record or record.state ~= 'running' then return H.ended_before",
        "test_finish.py",
    ),
    "ack before the result": lua(APPENDED, ACKED_FIRST + APPENDED, "test_finish.py"),
    "group at $": lua(CREATED, CREATED.replace("'0'", "'$'"), "test_admit.py"),
    "group made anew at $": lua(
        "P.GROUP, '0', 'MKSTREAM')", "P.GROUP, '$', 'MKSTREAM')", "test_take_foreign.py"
    ),
    "group of a suspect made anew at $": lua(
        SUSPECTS_GROUP, SUSPECTS_GROUP.replace("'0'", "'$'"), "test_take_foreign.py"
    ),
    "entry ids by time": lua(
        "local number = P.get(q, 'n', 0) + 1", "local number = q.now", "test_finish.py"
    ),
    "take without call numbers": lua(
        "  if t.call < last then return {{}, {}} end\n"
        "  if t.call == last then return {T.again(q, t, known), T.bells(q, t)} end\n",
        "",
        "test_take.py",
    ),
    "release adds the request again": lua(
        "  M.claim(q, record, M.CONSUMER[place])\n  if place",
        ADDED_AGAIN + "  M.claim(q, record, M.CONSUMER[place])\n  if place",
        "test_take.py",
        "test_release.py",
    ),
    "a reader pops the result": lua(
        "redis.call('GET', K.result(q, id)) or ''\n  budget",
        "redis.call('GETDEL', K.result(q, id)) or ''\n  budget",
        "test_reply.py",
    ),
    "release blames": lua(
        "M.give_back(q, record, M.home(record))", "B.crash(q, record)", "test_release.py"
    ),
    "no quiet after an outage": lua(
        "if q.now < P.get(q, 'quiet', 0) then return false end", "", "test_reclaim.py"
    ),
    "an end without settlement": lua(
        "worker = M.leave_running(q, record)\n    F.settle(q, record, tonumber(record.used))",
        "worker = M.leave_running(q, record)",
        "test_finish.py",
    ),
    "counts outside the function": Mistake(
        [
            Edit(LIBRARY, "redis.call('HINCRBY', K.ledger(q), state, 1)\n", ""),
            Edit(LEASES, FINISHED, COUNTED.lstrip() + "        " + FINISHED),
            Edit(LEASES, FINISHED_TAKEN, COUNTED.lstrip() + "        " + FINISHED_TAKEN),
        ],
        ["tests/shared/library/test_ledger.py"],
    ),
    "DELCONSUMER with pending rows": lua(
        "if row.err == nil and #row == 0 then", "if row.err == nil then", "test_finish.py"
    ),
    "TTL from the admit": lua(
        "result, 'PX', q.settings.result_ttl_ms)",
        "result, 'PX', math.max(1, q.settings.result_ttl_ms - q.now + record.admitted))",
        "test_reply.py",
    ),
    # Worker
    "worker never renews": python(
        f"{WORKER}/keeper.py",
        "await asyncio.gather(*map(self._renew, slices))",
        "await asyncio.sleep(0)",
        "worker/test_keeper.py",
    ),
    "worker keeps what it lost": python(
        f"{WORKER}/keeper.py", "run.stop(Stop.LOST)", "pass", "worker/test_keeper.py"
    ),
    "worker takes with a new number each time": python(
        f"{WORKER}/take.py",
        "lambda: self._leases.take(take))",
        "lambda: self._leases.take(self._next_take(1) or take))",
        "worker/test_take.py",
    ),
    "worker forgets a result before Redis has it": Mistake(
        [
            Edit(f"{WORKER}/outbox.py", GATHERED, GATHERED.replace("return batch", FORGOTTEN)),
            Edit(f"{WORKER}/outbox.py", LEFT, "            if"),
            Edit(f"{WORKER}/take.py", "words, taken = await self._link.until_answered(",
                 "words, taken = await self._link.ask("),
            Edit(f"{WORKER}/take.py", 'until_answered(\n            "finish"',
                 'ask(\n            "finish"'),
        ],
        ["tests/worker/test_outage.py"],
    ),
    "worker runs a request twice at once": python(
        f"{WORKER}/execute.py", "old.stop(Stop.LOST)", "pass", "worker/test_take.py"
    ),
    "worker hears bells while it is full": python(
        f"{WORKER}/take.py", "        if self._gate.free:\n", "        if self._gate.slots:\n",
        "worker/test_take.py",
    ),
    "drain counts attempts": python(
        f"{WORKER}/judge.py",
        'GivenBack(Blame.BLAMELESS, ends.trouble("The worker was stopped."))',
        'GivenBack(Blame.ATTEMPT, ends.trouble("The worker was stopped."))',
        "worker/test_drain.py",
    ),
    "a dead engine is an attempt": python(
        f"{WORKER}/pulse.py",
        "return Blame.CRASHED",
        "return Blame.ATTEMPT",
        "worker/test_execute.py",
    ),
    # Producer
    "admit again under another id": python(
        f"{PRODUCER}/admitter.py",
        ONCE_MORE,
        ANOTHER_ID + ONCE_MORE,
        "producer/test_duties.py",
    ),
    "a stream ends with its state": python(
        f"{PRODUCER}/reader.py", "if seen.ended:", "if seen.state in TERMINAL:",
        "producer/test_reader.py",
    ),
    "nobody asks where news is lost": python(
        f"{PRODUCER}/inbox.py",
        "            self._ask_quiet()\n",
        "            await asyncio.sleep(60)\n",
        "producer/test_redis_away.py",
    ),
    "who makes a new inbox asks for nobody": python(
        f"{PRODUCER}/inbox.py",
        "            if await self._news.renew():\n",
        "            if await self._news.renew() and not self._quiet:\n",
        "producer/test_redis_away.py",
    ),
    "an admit in doubt is left": python(
        f"{PRODUCER}/canceller.py", "self._in_doubt.add(request_id)", "return",
        "producer/test_doubt.py",
    ),
    "a client that hangs up is forgotten": python(
        f"{PRODUCER}/canceller.py",
        "state = await self._intake.leave(request_id, inbox, in_doubt=in_doubt)",
        "state = inbox",
        "producer/test_disconnects.py",
    ),
}  # fmt: skip


def mistakes() -> dict[str, Mistake]:
    """The named ones, then all faults of the library by group."""
    found = dict(NAMED)
    for faults, tests in GROUPS:
        for name, (old, new) in faults.items():
            found[name.replace("_", " ")] = lua(old, new, *tests)
    return found
