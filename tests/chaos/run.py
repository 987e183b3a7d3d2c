"""One run: load and faults side by side, then healing, draining, reading, and the final state."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from time import monotonic

import aiohttp
from redis.exceptions import RedisError
from tests.chaos.checker import HISTORY, STATE
from tests.chaos.clients import Load
from tests.chaos.counters import Counters
from tests.chaos.expected import note_expected
from tests.chaos.grants import GrantWatch
from tests.chaos.history import History
from tests.chaos.nemesis import Nemesis
from tests.chaos.ops import numbers
from tests.chaos.plan import LANES, deal
from tests.chaos.replies import ended
from tests.chaos.scene import Scene
from tests.chaos.stage import Options, Stage, standing
from tests.chaos.state import dump, leftovers

CHECK_S = 0.2
STALL_S = 0.3
READERS = 8
READ_S = aiohttp.ClientTimeout(10)


async def run(folder: Path, options: Options) -> None:
    """Leaves history and final state in `folder`."""
    history = History(folder / HISTORY)
    try:
        async with standing(folder, options, history) as stage:
            history.write(
                "run",
                seed=options.seed,
                length_s=options.length_s,
                beside=dict(stage.scene.beside),
                **_bounds(stage.scene),
            )
            await note_expected(stage)
            await _chaos(stage, history, options)
            state = await dump(stage)
    finally:
        history.close()
    (folder / STATE).write_text(json.dumps(state))


def _bounds(scene: Scene) -> dict[str, int]:
    return {name: getattr(scene.settings, name) for name in ("lease_ms", "reclaim_ms", "sweep_ms")}


async def _chaos(stage: Stage, history: History, options: Options) -> None:
    load, scene = Load(stage, options.seed), stage.scene
    watch = GrantWatch(stage, history)
    nemesis = Nemesis(stage, history, watch)
    counters = Counters(stage, history)
    async with asyncio.TaskGroup() as always:
        duties = (nemesis.supervise(), counters.watch(), _note_stalls(history))
        tasks = [always.create_task(duty) for duty in duties]
        clients = [always.create_task(load.client(number)) for number in range(scene.clients)]
        lanes = [
            nemesis.lane(
                deal(lane, options.seed, scene.roles, scene.lease_s, options.only),
                options.length_s,
            )
            for lane in LANES
        ]
        await asyncio.gather(asyncio.sleep(options.length_s), *lanes)
        load.stop.set()
        await stage.heal()
        await _settle([*clients, always.create_task(watch.finish())], scene.settle_s)
        await _look_after(stage, history)
        await counters.note()
        for task in tasks:
            task.cancel()


async def _note_stalls(history: History) -> None:
    """Write down when this very process stood still: all links did, too, as if Redis were away."""
    while True:
        began_s = history.now_s
        await asyncio.sleep(CHECK_S)
        if history.now_s - began_s > CHECK_S + STALL_S:
            history.write("stalled", from_s=began_s, until_s=history.now_s)


async def _look_after(stage: Stage, history: History) -> None:
    """What there is to see once all is healed and nobody asks for anything new."""
    drained = await _within(stage.scene.drain_s, lambda: _is_drained(stage))
    history.write("drained", ok=drained)
    await _read_all(stage, history)
    for process in stage.processes.values():
        for line in process.complaints():
            history.write("logged", name=process.name, line=line)


async def _settle(tasks: Sequence[asyncio.Task[None]], within_s: float) -> None:
    """Wait for what is under way; who has no end by then gets none."""
    _, pending = await asyncio.wait(tasks, timeout=within_s)
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.wait(pending)


async def _within(limit_s: float, holds: Callable[[], Awaitable[bool]]) -> bool:
    until_s = monotonic() + limit_s
    while not await holds():
        if monotonic() > until_s:
            return False
        await asyncio.sleep(CHECK_S)
    return True


async def _is_drained(stage: Stage) -> bool:
    """Nothing queued or running, and nothing left that only work keeps."""
    try:
        status = await stage.operator.status()
        return not (status["queued"] or status["running"] or await leftovers(stage))
    except RedisError:
        return False


async def _read_all(stage: Stage, history: History) -> None:
    """What each replica says of each request that is done."""
    ops = numbers((await dump(stage))["records"])
    twice = Counter(ops.values())
    rows = [(request_id, op) for request_id, op in ops.items() if twice[op] == 1]
    queue = iter(enumerate(rows))

    async def reader() -> None:
        for number, (request_id, op) in queue:
            await _read(stage, history, stage.replicas[number % 2], request_id, op)

    await asyncio.gather(*[reader() for _ in range(READERS)])


async def _read(stage: Stage, history: History, url: str, request_id: str, op: int) -> None:
    try:
        async with stage.http.get(f"{url}/v1/requests/{request_id}", timeout=READ_S) as answer:
            shown = await answer.json()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        history.write("read", op=op, id=request_id, state=f"unread: {type(error).__name__}")
        return
    if answer.status != 200:
        history.write("read", op=op, id=request_id, state=f"unread: {answer.status}")
        return
    history.write("read", op=op, id=request_id, through=url, **ended(shown))
