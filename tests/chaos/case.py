"""One run as the checks see it: its events by type and operation, and its final state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from tests.chaos.history import Event
from tests.chaos.ops import asked, numbers
from tests.chaos.texts import expected_text

Json = dict[str, Any]


class Case:
    """`ops` are the invocations by number, `records` those of requests, by id."""

    def __init__(self, events: Iterable[Event], state: Json) -> None:
        self.state = state
        self.by_type: dict[str, list[Event]] = defaultdict(list)
        self.by_op: dict[int, list[Event]] = defaultdict(list)
        for event in events:
            self.by_type[event["type"]].append(event)
            if "op" in event:
                self.by_op[event["op"]].append(event)
        self.ops = {event["op"]: event for event in self.by_type["invoke"]}
        self.acknowledged = {event["id"]: event["op"] for event in self.by_type["accepted"]}
        self._numbers = numbers(state["records"])
        self.records: dict[str, Json] = {one: state["records"][one] for one in self._numbers}
        self._told = {event["asked"]: event["text"] for event in self.by_type["expected"]}
        self._texts: dict[int, str] = {}

    def op_of(self, request_id: str) -> int | None:
        """The operation that a recorded request is from, or None where it is nobody's."""
        number = self._numbers[request_id]
        return number if number in self.ops else None

    def kind_of(self, op: int) -> str:
        return str(self.ops[op]["kind"])

    def expected(self, op: int) -> str:
        """What the engine says to this operation's body; of real vLLM, what it said in peace."""
        path, body = self.ops[op]["path"], self.ops[op]["body"]
        if op not in self._texts:
            told = self._told.get(asked(path, body))
            self._texts[op] = expected_text(path, body) if told is None else told
        return self._texts[op]
