"""When `forebay up` is ready, and its first question."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from forebay_shared.cli.api import Answer, Producer, Unreachable
from forebay_shared.cli.prompt import Question, stream_answer
from forebay_shared.cli.redis_place import open_redis
from forebay_shared.cli.status import read_pools
from forebay_shared.cli.terminal import Problem, say
from forebay_shared.cli.voice import Voice

LOOK_EVERY_S = 0.1
"""A port that opens and an entry in a registry tell nobody: they must be looked at."""
PATIENCE_S = 10.0

Workers = Callable[[], set[tuple[str, str]]]
"""Host and process id of each worker that runs now, as they stand in the registry."""


async def until_ready(producer: Producer) -> None:
    """Returns when the producer takes requests."""
    while True:
        answer = await _looked(producer, "/readyz")
        if answer is not None and answer.good:
            return
        await asyncio.sleep(LOOK_EVERY_S)


async def until_listed(producer: Producer, model: str) -> None:
    """Returns when the producer has read the registry, too; at once where it tells only by key."""
    while True:
        answer = await _looked(producer, "/v1/models")
        if answer is not None and (
            answer.status == 401 or (answer.good and model in answer.models())
        ):
            return
        await asyncio.sleep(LOOK_EVERY_S)


async def _looked(producer: Producer, path: str) -> Answer | None:
    """The answer; None while nobody listens, as before the start or between two."""
    try:
        return await producer.call("GET", path)
    except Unreachable:
        return None


async def until_served(redis_url: str, ours: Workers, engines: Sequence[str]) -> str:
    """Returns when one of our own workers serves: its first model."""
    loop = asyncio.get_running_loop()
    patient_until_s = loop.time() + PATIENCE_S
    while (model := await _served(redis_url, ours)) is None:
        if loop.time() > patient_until_s:
            say(f"still waiting for an engine to tell its models: {', '.join(engines)}")
            patient_until_s = math.inf
        await asyncio.sleep(LOOK_EVERY_S)
    return model


async def _served(redis_url: str, ours: Workers) -> str | None:
    """A model that one of our own workers has registered."""
    try:
        async with open_redis(redis_url) as redis:
            pools = await read_pools(redis)
    except Problem:
        return None  # no worker has founded a pool yet, or Redis is being started again
    for worker in (worker for pool in pools for worker in pool["workers"]):
        about = worker["about"]
        if worker["models"] and (about.get("host"), about.get("pid")) in ours():
            return str(worker["models"][0])
    return None


async def ask(producer: Producer, text: str, model: str, voice: Voice) -> None:
    """Ask a question and give the answer to the voice. Raises Problem where there is none."""
    voice.question(text)
    voice.answered(await stream_answer(producer, Question(text, model), voice.piece))
