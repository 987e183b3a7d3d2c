"""One JSON object a line on stderr: time, level, event, fields. Never bodies, prompts or keys."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

_LOGGER = logging.getLogger("forebay")


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        row: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        row |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[0]:
            row["error"] = record.exc_info[0].__name__
            row["trace"] = self.formatException(record.exc_info)
        return json.dumps(row, default=str)


def set_up(level: str = "info") -> None:
    """Send Forebay's events to stderr, from `level` up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    _LOGGER.handlers = [handler]
    _LOGGER.setLevel(level.upper())
    _LOGGER.propagate = False


def event(name: str, level: int = logging.INFO, **fields: object) -> None:
    """Log one event: a verb of the protocol or a plain noun, with bounded fields."""
    _LOGGER.log(level, name, extra={"fields": fields})


def failure(name: str, error: BaseException, **fields: object) -> None:
    """Log an unexpected error with its trace."""
    _LOGGER.error(name, exc_info=error, extra={"fields": fields})
