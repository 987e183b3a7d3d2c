"""The pool's settings as this worker knows them, read again when their epoch moves."""

from __future__ import annotations

from collections.abc import Sequence

from forebay_shared.calls import Operator
from forebay_shared.settings import PoolSettings
from forebay_worker.wake import Wake


class Rules:
    """The settings in force. `serves`: the classes this worker was told to serve, empty for all."""

    def __init__(self, operator: Operator, wake: Wake, serves: Sequence[str] = ()) -> None:
        self._operator = operator
        self._wake = wake
        self._serves = tuple(serves)
        self.settings = PoolSettings()
        self.epoch = -1

    async def read(self) -> None:
        """Read settings and epoch; the take loop looks which bells it has to hear now."""
        self.settings, self.epoch = await self._operator.settings()
        self._wake.up()

    @property
    def classes(self) -> list[str]:
        """The classes that exist and are served, highest first."""
        names = self.settings.class_names()
        return [name for name in names if not self._serves or name in self._serves]

    def unknown_classes(self) -> list[str]:
        """Classes this worker was told to serve that the pool does not have."""
        return sorted(set(self._serves) - set(self.settings.class_names()))
