"""What operators call: status, pause, drain, settings."""

from __future__ import annotations

import json
from typing import Any

from forebay_shared.calls.library import Library
from forebay_shared.settings import PoolSettings


class SettingsChanged(Exception):
    """Somebody else changed the settings since they were read; read them and try again."""


class ClassInUse(ValueError):
    """A class with entries cannot be removed; drain it first."""


class Operator:
    """Calls of an operator."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def status(self) -> dict[str, Any]:
        """The pool as a JSON-like value: state, classes, ledger, workers, models, identities."""
        value: dict[str, Any] = json.loads(await self._library.call("status"))
        for name in ("workers", "models"):
            value[name] = value[name] or []  # Lua cannot tell an empty list from an empty table
        for worker in value["workers"]:
            for name in ("classes", "models", "about"):
                worker[name] = json.loads(worker[name])
        return value

    async def switch(self, *, paused: bool | None = None, draining: bool | None = None) -> None:
        """Pause (take gives nothing) or drain (admit refuses) the pool, or end that."""
        words = {None: "", True: "1", False: "0"}
        await self._library.call("switch", words[paused], words[draining])

    async def settings(self) -> tuple[PoolSettings, int]:
        """The settings and their epoch."""
        raw, epoch = await self._library.call("settings")
        return PoolSettings.model_validate_json(raw), int(epoch)

    async def change_settings(self, settings: PoolSettings, epoch: int) -> int:
        """Store settings if `epoch` is still the stored one; the new epoch.

        Raises SettingsChanged or ClassInUse; nothing is stored then.
        """
        word, value = await self._library.call("configure", settings.stored(), epoch)
        if word == b"changed":
            raise SettingsChanged(f"the settings are at epoch {int(value)}")
        if word == b"used":
            raise ClassInUse(f"class {value.decode()} still has requests")
        return int(value)

    async def order(self, worker: str, order: str) -> None:
        """Give a living worker an order (`drain`) through its control list."""
        await self._library.call("order", worker, order)
