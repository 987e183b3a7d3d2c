"""From a call to an Admission: class, deadline, limits and what makes a repeat recognisable."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from forebay_producer.asked import Asked, output_limit
from forebay_producer.keysfile import Caller
from forebay_shared.calls.requests import UNKNOWN, Admission
from forebay_shared.errors import InvalidRequest
from forebay_shared.ids import new_request_id
from forebay_shared.records import Envelope
from forebay_shared.settings import PoolSettings

TIERS = {
    "priority": "high",
    "fast": "high",
    "scale": "high",
    "default": "normal",
    "auto": "normal",
    "flex": "low",
}
"""OpenAI's service tiers and the classes that they ask for."""
_LONGEST_TIMEOUT_S = 30 * 86_400
_LONGEST_KEY = 255
_FAST = re.compile(rb'((?<!\\)"service_tier"\s*:\s*)"fast"')
_TRAVELLING = ("traceparent", "tracestate")
"""Headers that go on to the engine as they are."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a client: everything that decides how it is admitted. Headers by lower case."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    asked: Asked
    caller: Caller

    @property
    def asynchronous(self) -> bool:
        """Whether the client wants a 202 and comes back for the answer."""
        preferences = self.headers.get("prefer", "").lower()
        return any(one.strip() == "respond-async" for one in re.split("[,;]", preferences))

    @property
    def patience_s(self) -> float | None:
        """How long an official SDK waits between two bytes, or None where it does not say."""
        return _seconds(self.headers.get("x-stainless-read-timeout", ""))


def make_admission(call: Call, pool: str, settings: PoolSettings) -> Admission:
    """The admission of `call` to `pool`. Raises InvalidRequest that names the header or field."""
    class_name = chosen_class(call, settings)
    most = output_limit(call.path, call.asked)
    return Admission(
        request_id=new_request_id(pool),
        class_name=class_name,
        tenant=call.caller.tenant,
        envelope=_envelope(call, settings.class_names().index(class_name)),
        timeout_ms=timeout_ms(call, settings),
        weight=call.caller.weight,
        output_limit=most,
        output_estimate=most if call.caller.estimate == "max_tokens" else UNKNOWN,
        idempotency=_idempotency(call.headers),
        fingerprint=_fingerprint(call),
        limits=call.caller.limited(),
        detached=call.asynchronous,
    )


def chosen_class(call: Call, settings: PoolSettings) -> str:
    """The class asked for, but none above the highest that the key allows.

    `X-Priority` names a class and goes before the body's `service_tier`. A class that a tier or
    a key names and this pool does not have stands for the pool's usual one.
    """
    names = settings.class_names()
    usual = "normal" if "normal" in names else names[len(names) // 2]
    asked = _class_by_header(call.headers, names) or _class_by_tier(call.asked) or usual
    highest = call.caller.highest_class
    ranks = [names.index(name if name in names else usual) for name in (asked, highest)]
    return names[max(ranks)]


def _class_by_header(headers: Mapping[str, str], names: list[str]) -> str | None:
    named = headers.get("x-priority", "").strip().lower()
    if named and named not in names:
        raise InvalidRequest(f"X-Priority must be one of {', '.join(names)}.", param="X-Priority")
    return named or None


def _class_by_tier(asked: Asked) -> str | None:
    if asked.service_tier is None:
        return None
    if asked.service_tier not in TIERS:
        raise InvalidRequest(
            f"service_tier must be one of {', '.join(TIERS)}.", param="service_tier"
        )
    return TIERS[asked.service_tier]


def timeout_ms(call: Call, settings: PoolSettings) -> int:
    """Milliseconds until the deadline: as named, else the client's patience, else the pool's.

    A stream's client is as patient as it says between two events, however long the whole lasts.
    """
    named = call.headers.get("x-request-timeout")
    if named is not None:
        return _named_timeout_ms(named)
    if call.asynchronous:
        return settings.async_deadline_ms
    if call.asked.streams or call.patience_s is None:
        return settings.sync_deadline_ms
    return int(call.patience_s * 1000)


def _named_timeout_ms(named: str) -> int:
    seconds = _seconds(named)
    if seconds is None:
        raise InvalidRequest(
            f"X-Request-Timeout must be a number of seconds above 0, at most {_LONGEST_TIMEOUT_S}.",
            param="X-Request-Timeout",
        )
    return int(seconds * 1000)


def _seconds(text: str) -> float | None:
    """A number of seconds of at least a millisecond, or None for anything else."""
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text.strip()):
        return None
    seconds = float(text)
    return seconds if 0.001 <= seconds <= _LONGEST_TIMEOUT_S else None


def _envelope(call: Call, rank: int) -> Envelope:
    headers = {name: call.headers[name] for name in _TRAVELLING if name in call.headers}
    # Overrides a `priority` in the body, by which a client could pass others inside the engine.
    headers["x-vllm-priority"] = str(rank)
    return Envelope(
        path=call.path,
        model=call.asked.model,
        body=_engine_body(call),
        stream=call.asked.streams,
        progress=call.headers.get("x-resume", "").strip().lower() == "true",
        headers=headers,
    )


def _engine_body(call: Call) -> bytes:
    """The body as received. Only `fast`, a tier that vLLM refuses, goes on as the one it means."""
    if call.asked.service_tier != "fast":
        return call.body
    return _FAST.sub(rb'\1"priority"', call.body)


def _idempotency(headers: Mapping[str, str]) -> str:
    key = headers.get("idempotency-key", "")
    if len(key) > _LONGEST_KEY:
        raise InvalidRequest(
            f"Idempotency-Key must have at most {_LONGEST_KEY} characters.", param="Idempotency-Key"
        )
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest() if key else ""


def _fingerprint(call: Call) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in (call.caller.tenant.encode(), call.path.encode(), call.body):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()
