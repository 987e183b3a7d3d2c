"""What is asked of the engine beside what the client asked: usage at the end of a stream, and the
token ids by which a stream can be continued.

Forebay charges by tokens, and a chunk is not a token, so a stream has to end with its usage. Where
the client did not ask for that, `stream_options.include_usage` is spliced into its JSON, and
`return_token_ids` where the engine knows it; the rest of the bytes stay as they came. What the
engine then adds is taken out again by `answers` and `marks`.
"""

from __future__ import annotations

import re

from forebay_worker.members import member, with_first

_ASKED = '"include_usage":true'
_OPTIONS = '"stream_options":{' + _ASKED + "}"
_TOKEN_IDS = b'"return_token_ids":true'
# A key may be written with escapes for ASCII letters; nobody does, but then it must be parsed.
_MAY_NAME_OPTIONS = re.compile(rb'"stream_options"|\\u00[2-7]')


def with_usage(body: bytes) -> bytes | None:
    """The body with usage asked for, or None where it stays: asked for already, or unreadable."""
    if _MAY_NAME_OPTIONS.search(body) is None:
        return _with_first(body, _OPTIONS.encode())
    try:
        text = _with_usage_parsed(body.decode())
    except (ValueError, RecursionError):
        return None
    return None if text is None else text.encode()


def with_token_ids(body: bytes) -> bytes | None:
    """The body with token ids asked for; it must not name them. None where it is unreadable."""
    return _with_first(body, _TOKEN_IDS)


def _with_first(body: bytes, addition: bytes) -> bytes | None:
    start = body.find(b"{") + 1
    rest = body[start:].lstrip()
    if start == 0 or body[: start - 1].strip() or not rest:
        return None
    comma = b"" if rest.startswith(b"}") else b","
    return body[:start] + addition + comma + body[start:]


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
