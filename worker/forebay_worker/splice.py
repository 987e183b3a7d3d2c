"""What is asked of the engine beside what the client asked: usage at the end of a stream.

Forebay charges by tokens, and a chunk is not a token, so a stream has to end with its usage. Where
the client did not ask for that, `stream_options.include_usage` is spliced into its JSON; the rest
of the bytes stay as they came. What the engine then adds is taken out again by `answers`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from forebay_shared.records import Envelope
from forebay_worker.engine import EngineCall
from forebay_worker.members import member, with_first

STREAMING_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
_ASKED = '"include_usage":true'
_OPTIONS = '"stream_options":{' + _ASKED + "}"
# A key may be written with escapes for ASCII letters; nobody does, but then it must be parsed.
_MAY_NAME_OPTIONS = re.compile(rb'"stream_options"|\\u00[2-7]')


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call ready for the engine. `usage_added`: its usage is for us, not for the client."""

    call: EngineCall
    usage_added: bool


def prepare(envelope: Envelope, request_id: str) -> Prepared:
    """The engine call of a stored request.

    A body that is not a JSON object goes as it is: the engine says better what is wrong with it.
    """
    body = None
    if envelope.stream and envelope.path in STREAMING_PATHS:
        body = with_usage(envelope.body)
    call = EngineCall(
        request_id=request_id,
        path=envelope.path,
        body=envelope.body if body is None else body,
        stream=envelope.stream,
        headers=envelope.headers,
    )
    return Prepared(call, usage_added=body is not None)


def with_usage(body: bytes) -> bytes | None:
    """The body with usage asked for, or None where it stays: asked for already, or unreadable."""
    if _MAY_NAME_OPTIONS.search(body) is None:
        start = body.find(b"{") + 1
        rest = body[start:].lstrip()
        if start == 0 or body[: start - 1].strip() or not rest:
            return None
        comma = b"" if rest.startswith(b"}") else b","
        return body[:start] + _OPTIONS.encode() + comma + body[start:]
    try:
        text = _with_usage_parsed(body.decode())
    except (ValueError, RecursionError):
        return None
    return None if text is None else text.encode()


def _with_usage_parsed(text: str) -> str | None:
    options = member(text, "stream_options")
    if options is None:
        return with_first(text, _OPTIONS)
    if not isinstance(options.value, dict):
        if options.value is not None:
            return None  # not an object: the engine's to refuse
        return text[: options.value_at] + "{" + _ASKED + "}" + text[options.value_end :]
    asked = member(text, "include_usage", options.value_at)
    if asked is None:
        return with_first(text, _ASKED, options.value_at)
    if asked.value is True:
        return None
    return text[: asked.value_at] + "true" + text[asked.value_end :]
