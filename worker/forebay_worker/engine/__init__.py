"""Engines: the one seam between a worker and whatever generates tokens."""

from forebay_worker.engine.base import (
    Answer,
    Chunk,
    Engine,
    EngineBroken,
    EngineBusy,
    EngineCall,
    EngineError,
    EngineEvent,
    EngineFailed,
    EngineRejected,
    EngineUnreachable,
    Load,
    Traits,
)

__all__ = [
    "Answer",
    "Chunk",
    "Engine",
    "EngineBroken",
    "EngineBusy",
    "EngineCall",
    "EngineError",
    "EngineEvent",
    "EngineFailed",
    "EngineRejected",
    "EngineUnreachable",
    "Load",
    "Traits",
]
