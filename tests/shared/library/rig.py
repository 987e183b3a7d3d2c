"""Each call made twice, on a real server and on the oracle: answers and stored states agree."""

from __future__ import annotations

import json
from typing import Any

from redis import Redis
from tests.model import admit, duties, hold, operate, readers, take
from tests.model.compare import differences
from tests.model.dump import dump
from tests.model.state import Pool
from tests.model.stored import Normal, lives, stored
from tests.shared.library.driver import HeldLibrary

from forebay_shared.settings import PoolSettings

POOL = "rig"


CLASSES = tuple(one.name for one in PoolSettings().classes)


def plain(number: int, class_name: str = "normal", tenant: str = "ann", **rest: Any) -> admit.Item:
    """A request that nothing in particular is asked of."""
    return admit.Item(request_id(number), class_name, tenant, **rest)


def request_id(number: int) -> str:
    return f"{POOL}.{number:026d}"


def room(worker: str, call: int, count: int = 100, slots: int = 100, **rest: Any) -> take.Take:
    """A take of a worker with room for all, of all classes."""
    free = rest.pop("free", dict.fromkeys(CLASSES, 100))
    return take.Take(worker, call, slots, rest.pop("wire", 1), count, free, **rest)


def done(number: int, call: int, **rest: Any) -> hold.Ending:
    """The usual good end of a request."""
    head = {"state": "done", "status": 200}
    known: dict[str, Any] = {"usage": (3, 0, 7), "head": head, "body": b"answer"}
    return hold.Ending(request_id(number), call, "done", "", **(known | rest))


def given_back(number: int, call: int, blame: str, jitter: float = 0) -> hold.Release:
    head = {"state": "failed", "status": 500}
    return hold.Release(request_id(number), call, blame, jitter, (3, 0, 2), "engine", head, b"no")


def flat(value: Any) -> Any:
    """Texts as bytes and whole floats as ints, so that two replies compare."""
    if isinstance(value, list | tuple):
        return [flat(one) for one in value]
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def head(value: dict[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class Rig:
    """A pool on a server and its oracle, moved together."""

    def __init__(self, client: Redis, settings: PoolSettings) -> None:
        self.client = client
        self.library = HeldLibrary(client, POOL, settings)
        self.oracle = Pool(settings, now=self.library.now_ms)
        self.library.fcall("found", settings.stored())

    def both(self, expected: Any, step: str, *arguments: Any) -> Any:
        """The server's answer, after it was found equal to the oracle's."""
        answer = flat(self.library.fcall(step, *arguments))
        agree(flat(expected), answer)
        return answer

    def change(self, **settings: Any) -> None:
        """Other settings from now on, as an operator changes them."""
        changed = self.oracle.settings.model_copy(update=settings)
        self.configure(changed, self.oracle.epoch)

    def check(self) -> None:
        """The stored state is what the oracle says, and the identities hold."""
        state, with_ttl = dump(self.client, POOL)
        expected = stored(self.oracle)
        found = list(differences(expected, state))
        assert not found, "stored state differs:\n" + "\n".join(found)
        assert with_ttl == lives(self.oracle, expected)
        check_identities(state)

    # Producers ------------------------------------------------------------------------------------

    def admit(self, items: list[admit.Item], inbox: str = "") -> Any:
        arguments: list[Any] = [inbox, len(items)]
        for one in items:
            arguments += [
                one.id, one.class_name, one.tenant, one.weight, one.timeout, one.wire, one.model,
                one.limit, one.estimate, one.stream, one.progress, one.detached,
                one.idempotency, one.fingerprint, one.most, one.most_bytes, one.per_minute,
                one.tokens_per_minute, one.head, one.body,
            ]  # fmt: skip
        return self.both(admit.admit(self.oracle, items, inbox), "admit", *arguments)

    def reply(self, inbox: str, items: list[tuple[str, int]]) -> None:
        wanted = [value for one in items for value in one]
        rows = flat(readers.reply(self.oracle, inbox, items))
        answer = flat(self.library.fcall("reply", inbox, len(items), *wanted))
        agree([with_result(row, 3) for row in rows], [with_result(row, 3) for row in answer])

    def cancel(
        self, request_id: str, tenant: str = "", inbox: str = "", in_doubt: bool = False
    ) -> Any:
        expected = readers.cancel(self.oracle, request_id, tenant, inbox, in_doubt)
        return self.both(expected, "cancel", request_id, tenant, inbox, int(in_doubt))

    def show(self, request_id: str, tenant: str = "") -> None:
        row = flat(readers.show(self.oracle, request_id, tenant))
        answer = flat(self.library.fcall("show", request_id, tenant))
        agree(with_result(row, -1), with_result(answer, -1))

    # Workers --------------------------------------------------------------------------------------

    def take(self, wanted: take.Take) -> Any:
        return self.both(take.take(self.oracle, wanted), "take", *take_arguments(wanted))

    def renew(self, worker: str, items: list[hold.Held]) -> Any:
        arguments: list[Any] = [worker, len(items)]
        for one in items:
            arguments += [one.id, one.call, *one.usage]
        return self.both(hold.renew(self.oracle, worker, items), "renew", *arguments)

    def emit(self, worker: str, items: list[hold.Emission]) -> Any:
        arguments: list[Any] = [worker, len(items)]
        for one in items:
            arguments += [one.id, one.call, one.offset, *one.usage, *chunk_arguments(one.chunks)]
        return self.both(hold.emit(self.oracle, worker, items), "emit", *arguments)

    def finish(self, worker: str, items: list[hold.Ending]) -> Any:
        arguments = [worker, *ending_arguments(items)]
        return self.both(hold.finish(self.oracle, worker, items), "finish", *arguments)

    def finish_take(self, items: list[hold.Ending], wanted: take.Take) -> Any:
        expected = [
            hold.finish(self.oracle, wanted.worker, items),
            take.take(self.oracle, wanted),
        ]
        arguments = [wanted.worker, *ending_arguments(items), *take_arguments(wanted)]
        return self.both(expected, "finish_take", *arguments)

    def release(self, worker: str, items: list[hold.Release]) -> Any:
        arguments: list[Any] = [worker, len(items)]
        for one in items:
            arguments += [one.id, one.call, one.blame, one.jitter, *one.usage, one.reason]
            arguments += [head(one.head), one.body]
        return self.both(hold.release(self.oracle, worker, items), "release", *arguments)

    # Duties and operators -------------------------------------------------------------------------

    def sweep(self, forced: bool = False) -> Any:
        return self.both(duties.sweep(self.oracle, forced), "sweep", int(forced))

    def register(
        self, worker: str, state: str, slots: int, held: int, served: tuple[list[str], list[str]]
    ) -> Any:
        classes, models = served
        expected = duties.register(self.oracle, worker, state, slots, held, classes, models)
        texts = [json.dumps(classes), "{}", len(models), *models]
        return self.both(expected, "register", worker, state, slots, held, *texts)

    def leave(self, worker: str) -> Any:
        return self.both(duties.leave(self.oracle, worker), "leave", worker)

    def switch(self, paused: bool | None, draining: bool | None) -> Any:
        words = {None: "", True: "1", False: "0"}
        expected = operate.switch(self.oracle, paused, draining)
        return self.both(expected, "switch", words[paused], words[draining])

    def configure(self, settings: PoolSettings, epoch: int) -> Any:
        expected = operate.configure(self.oracle, settings, epoch)
        return self.both(expected, "configure", settings.stored(), epoch)

    def order(self, worker: str, text: str) -> Any:
        return self.both(operate.order(self.oracle, worker, text), "order", worker, text)

    def entries(self) -> list[bytes]:
        """Entry ids of the dead letters, oldest first."""
        return [entry for entry, _ in self.client.xrange(self.library.prefix + "dead")]

    def requeue(self, at: int) -> Any:
        entries = self.entries()
        letter = entries[at] if 0 <= at < len(entries) else "5-5"
        return self.both(operate.requeue(self.oracle, at), "requeue", letter)

    def letters(self, which: operate.Which, most: int = 100, start: int | None = None) -> list[int]:
        """Places of the letters told, newest first, after the one at `start`."""
        entries = self.entries()
        expected = operate.letters(self.oracle, which)
        expected = [at for at in expected if start is None or at < start][:most]
        after = b"" if start is None else b"(" + entries[start]
        rows, following = self.library.fcall("letters", after, most, 1, *_which(which))
        agree([[entries[at], *self.letter(at)] for at in expected], [_told(row) for row in rows])
        assert bool(following) or len(rows) < most
        return expected

    def letter(self, at: int) -> list[Any]:
        one = self.oracle.dead[at]
        number = operate.last_number(self.oracle, one.id)
        words = (one.id, one.reason, one.class_name, one.tenant)
        return [*(flat(word) for word in words), one.at, one.size, number, one.head, one.body]

    def purge(self, which: operate.Which) -> Any:
        return self.both([operate.purge(self.oracle, which), ""], "purge", "", *_which(which))

    # What is not a call ---------------------------------------------------------------------------

    def pass_time(self, ms: int) -> None:
        """Time passes: keys whose TTL ends go, as the server's own clock would make them."""
        for key in duties.pass_time(self.oracle, ms):
            self.client.delete(self.library.prefix + key)
        self.library.now_ms = int(self.oracle.now)

    def sweep_for(self, ticks: int) -> None:
        """What living processes do: a sweep each tick."""
        for _ in range(ticks):
            self.pass_time(self.oracle.settings.sweep_ms)
            self.sweep()

    def hear_bell(self, class_name: str) -> None:
        """A worker takes a wake-up, if there is one."""
        heard = self.client.lpop(self.library.prefix + f"bell:{class_name}")
        left = self.oracle.bells.get(class_name, 0)
        assert bool(left) == bool(heard)
        self.oracle.bells[class_name] = max(0, left - 1)

    def read_orders(self, worker: str) -> None:
        """A worker reads its control list to the end."""
        self.client.delete(self.library.prefix + f"control:{worker}")
        self.oracle.control.pop(worker, None)
        self.oracle.expires.pop(f"control:{worker}", None)

    def open_inbox(self, name: str) -> None:
        self.client.xadd(self.library.prefix + f"inbox:{name}", {"new": ""})
        self.oracle.inboxes.setdefault(name, [])

    def lose_inbox(self, name: str) -> None:
        self.client.delete(self.library.prefix + f"inbox:{name}")
        self.oracle.inboxes.pop(name, None)


def _which(which: operate.Which) -> list[Any]:
    return [which.reason, which.class_name, which.tenant, which.id, int(which.age)]


def _told(row: list[Any]) -> list[Any]:
    """A row of `letters` with its numbers read, and without what else is known of the letter."""
    return [*row[:5], float(row[5]), float(row[6]), *row[8:]]


def agree(expected: Any, answer: Any) -> None:
    assert answer == expected, f"expected {expected!r}, answered {answer!r}"


def with_result(row: list[Any], at: int) -> list[Any]:
    """A row whose stored result is read: the order of names in its head says nothing."""
    if not row or not row[at]:
        return row
    text, _, body = row[at].partition(b"\n")
    return [*row[:at], (json.loads(text), body), *row[at:][1:]]


def take_arguments(wanted: take.Take) -> list[Any]:
    row: list[Any] = [wanted.worker, wanted.call, wanted.slots, wanted.wire, wanted.count]
    row.append(len(wanted.free))
    for name, most in wanted.free.items():
        row += [name, most]
    return row


def chunk_arguments(chunks: hold.Chunks) -> list[Any]:
    return [len(chunks), *(part for chunk in chunks for part in chunk)]


def ending_arguments(items: list[hold.Ending]) -> list[Any]:
    row: list[Any] = [len(items)]
    for one in items:
        row += [one.id, one.call, one.state, one.reason, *one.usage, head(one.head), one.body]
        row += [one.offset, *chunk_arguments(one.chunks)]
    return row


def check_identities(state: Normal) -> None:
    """What must always hold between the stored keys themselves."""
    ledger, clock = state["ledger"], state.get("clock", {})
    terminal = sum(ledger.get(name, 0) for name in
                   ("done", "failed", "cancelled", "expired", "shed", "dead"))  # fmt: skip
    queued, running = clock.get("queued", 0), clock.get("running", 0)
    assert ledger.get("accepted", 0) == queued + running + terminal
    places = [value for key, value in state.items() if key.startswith(("waiting:", "suspects:"))]
    assert queued == sum(map(len, places)) + len(state.get("delayed", {}))
    assert running == len(state.get("leases", {}))
    queues = [value for key, value in state.items() if key.startswith("queue:")]
    assert sum(len(queue["entries"]) for queue in queues) == queued + running
    assert all(
        value >= 0 for field, value in clock.items() if field.startswith(("queued", "running"))
    )
