"""What a soak asks for: request number n is always the same, and every way through the queue is
among them: answers, streams, repeats by key, cancels, deadlines that pass, engines that fail."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from forebay_shared.calls import Admission
from forebay_shared.ids import new_request_id
from forebay_shared.records import Envelope

CLASSES = ("high", "normal", "low", "background")
TENANTS = 20
POOL = "default"
LONG_MS = 600_000


@dataclass(frozen=True, slots=True)
class Asked:
    """One request; `cancelled`: its client leaves at once; `twice`: it is sent again by its key."""

    admission: Admission
    cancelled: bool = False
    twice: bool = False

    def again(self) -> Admission:
        """The same under another id."""
        return replace(self.admission, request_id=new_request_id(POOL))


def ask(number: int) -> Asked:
    """Request `number`: of a hundred one is cancelled, one late, three come twice, ten stream.

    One of 5,000 meets an engine that fails: each attempt holds a slot for the two seconds
    after which the engine's health is asked.
    """
    turn = number % 100
    body: dict[str, Any] = {"model": "sim", "prompt": "Hello", "max_tokens": 1 + number % 4}
    body |= {"ignore_eos": True, "stream": 10 <= turn < 20}
    if number % 5_000 == 4_999:
        body |= {"sim": {"fail": "500"}}
    raw = json.dumps(body).encode()
    twice = 3 <= turn < 6
    admission = Admission(
        request_id=new_request_id(POOL),
        class_name=CLASSES[number % len(CLASSES)],
        tenant=f"tenant-{number // 3 % TENANTS}",
        envelope=Envelope("/v1/completions", "sim", raw, stream=bool(body["stream"])),
        timeout_ms=1 if turn == 2 else LONG_MS,
        output_limit=int(body["max_tokens"]),
        idempotency=sha256(str(number).encode()).hexdigest()[:32] if twice else "",
        fingerprint=sha256(raw).hexdigest()[:32],
    )
    return Asked(admission, cancelled=turn == 0, twice=twice)
