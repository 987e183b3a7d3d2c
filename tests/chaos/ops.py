"""What the clients ask for: operation number n of a seed is always the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

OpKind = Literal[
    "answer", "twins", "stream", "submit", "follow", "cancel", "hangup", "refuse", "expire"
]
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
BASE_TIMEOUT_MS = 600_000
SHORT_TIMEOUT_MS = 300
MIX: Mapping[OpKind, int] = {
    "answer": 4,
    "stream": 4,
    "submit": 3,
    "follow": 3,
    "cancel": 2,
    "hangup": 1,
    "twins": 1,
    "refuse": 1,
    "expire": 1,
}
CLASSES = ("high", "normal", "low", "background")
SIM_ONLY = ("refuse",)
"""Real vLLM has no fault to be asked for."""
LONG_SHARE = 0.1
USAGE_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a client.

    answer    wait for the answer; repeated with its key, on the other replica, until it comes
    stream    read the stream; where it is cut, read on through the other replica
    submit    asynchronously, then wait for the result
    follow    asynchronously, then read the events, with cuts by the client itself
    cancel    asynchronously, then DELETE
    hangup    leave before the answer comes
    twins     the same key on both replicas at once
    refuse    an answer that the engine refuses with 500 each time
    expire    an answer with a deadline that is short, at least in the first minutes
    """

    number: int
    kind: OpKind
    path: str
    body: dict[str, Any]
    key: str
    priority: str

    @property
    def timeout_ms(self) -> int:
        """Different for each: the record of a request that nobody got an id for is known by it."""
        return self.number + (SHORT_TIMEOUT_MS if self.kind == "expire" else BASE_TIMEOUT_MS)

    def headers(self) -> dict[str, str]:
        # Half a millisecond more: seconds are cut to whole milliseconds.
        named = {"X-Request-Timeout": f"{self.timeout_ms // 1000}.{self.timeout_ms % 1000:03}5"}
        named["X-Priority"] = self.priority
        if self.kind in ("submit", "follow", "cancel"):
            named["Prefer"] = "respond-async"
        if self.key:
            named["Idempotency-Key"] = self.key
        return named


def numbers(records: Mapping[str, Mapping[str, str]]) -> dict[str, int]:
    """Request id → number of its operation, by the timeout in its record.

    A record without a class is no request: it stands for one that must not be admitted.
    """
    timeouts = {name: int(one["timeout"]) for name, one in records.items() if one["class"]}
    return {
        name: timeout - (SHORT_TIMEOUT_MS if timeout < BASE_TIMEOUT_MS else BASE_TIMEOUT_MS)
        for name, timeout in timeouts.items()
    }


def draw_op(seed: int, number: int, model: str = "sim") -> Op:
    """Operation `number` of this seed, for the simulated engine or the tiny model of real vLLM."""
    dice = Random(f"{seed}/op/{number}")
    mix = MIX if model == "sim" else {kind: n for kind, n in MIX.items() if kind not in SIM_ONLY}
    kind = dice.choices(list(mix), list(mix.values()))[0]
    streams = kind in ("stream", "follow") or (kind == "hangup" and dice.random() < 0.5)
    path, body = _sim_body(dice, seed, number) if model == "sim" else dice.choice(few_bodies(model))
    body = body | {"stream": streams}
    if streams and dice.random() < USAGE_SHARE:
        body |= {"stream_options": {"include_usage": True}}
    if kind == "refuse":
        body |= {"sim": {"fail": "500", "after_tokens": dice.choice((0, 1))}}
    return Op(
        number=number,
        kind=kind,
        path=path,
        body=body,
        key="" if kind in ("stream", "hangup") else f"{seed}-{number}",
        priority=dice.choice(CLASSES),
    )


Asked = tuple[str, dict[str, Any]]
"""Path and body."""


def _sim_body(dice: Random, seed: int, number: int) -> Asked:
    path = dice.choice((CHAT, COMPLETION))
    long = dice.random() < LONG_SHARE
    tokens = dice.randint(120, 240) if long else dice.randint(2, 40)
    return path, _body(path, "sim", f"Number {number} of {seed}", tokens)


def few_bodies(model: str) -> list[Asked]:
    """What a real engine is asked: so few that it can be asked each beforehand, in peace."""
    return [
        (path, _body(path, model, f"Number {number}", 12 + 16 * number))
        for path in (CHAT, COMPLETION)
        for number in range(8)
    ]


def _body(path: str, model: str, prompt: str, tokens: int) -> dict[str, Any]:
    body = {"model": model, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    if path == CHAT:
        return body | {"messages": [{"role": "user", "content": prompt}]}
    return body | {"prompt": prompt}


def asked(path: str, body: Mapping[str, Any]) -> str:
    """Names what decides the text: the body without what decides its form alone."""
    form = ("stream", "stream_options")
    return json.dumps([path, {k: v for k, v in body.items() if k not in form}], sort_keys=True)
