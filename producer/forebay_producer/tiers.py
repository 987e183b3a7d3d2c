"""`service_tier` in an answer: only where the request had it, spliced in without parsing."""

from __future__ import annotations

import re

from forebay_producer.admission import TIERS
from forebay_producer.asked import Asked

_SERVED_AS = {"critical": "priority", "high": "priority", "normal": "default"}
# Inside a JSON string every quote is escaped, so this matches a key and never text.
_KEY = re.compile(rb'(?<!\\)"service_tier"\s*:\s*(?:null|"[^"\\]*")')


def served_tier(asked: Asked, class_name: str) -> str | None:
    """The tier to name in the answer: the one asked for if it was served, None if none was."""
    if asked.service_tier is None:
        return None
    if asked.service_tier != "auto" and TIERS.get(asked.service_tier) == class_name:
        return asked.service_tier
    return _SERVED_AS.get(class_name, "flex")


def splice_tier(answer: bytes, tier: str | None) -> bytes:
    """The JSON object `answer` with `service_tier` set to `tier`; unchanged for None."""
    if tier is None:
        return answer
    member = b'"service_tier":"' + tier.encode() + b'"'
    spliced, found = _KEY.subn(member, answer, count=1)
    if found:
        return spliced
    head, brace, tail = answer.rpartition(b"}")
    if not brace or tail.strip():
        return answer
    comma = b"" if head.strip() == b"{" else b","
    return head + comma + member + b"}" + tail
