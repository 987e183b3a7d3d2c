"""What a real engine says to each body, asked in peace, before any fault and without a queue.

The simulated engine need not be asked: see `texts`.
"""

from __future__ import annotations

from tests.chaos.ops import asked, few_bodies
from tests.chaos.reading import text_of
from tests.chaos.stage import Stage


async def note_expected(stage: Stage) -> None:
    """Write down the engine's text of every body that the clients use, one after another."""
    if stage.scene.engine == "sim":
        return
    engine = stage.processes[stage.scene.engines[0]].probe.removesuffix("/health")
    for path, body in few_bodies(stage.scene.model):
        async with stage.http.post(engine + path, json=body) as answer:
            answer.raise_for_status()
            text = text_of(await answer.json())
        stage.history.write("expected", asked=asked(path, body), text=text)
