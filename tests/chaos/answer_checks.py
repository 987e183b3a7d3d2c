"""What clients read beside the text: a stream looks like one engine's, and usage is true."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.chaos.case import Case, Json
from tests.chaos.checks import head_of
from tests.chaos.ops import CHAT
from tests.chaos.verdict import Verdict


def check_heads(case: Case, verdict: Verdict) -> None:
    """Over all attempts a stream has one `id` and one `created`, and says its role once, first."""
    for request_id in case.state["outputs"]:
        op = case.op_of(request_id) if request_id in case.records else None
        chunks = _chunks(case, request_id)
        if op is None or not chunks:
            continue
        for name in ("id", "created", "model"):
            if len(values := {str(chunk.get(name)) for chunk in chunks}) > 1:
                verdict.wrong(f"a stream has several of `{name}`", f"{request_id}: {values}")
        roles = [n for n, chunk in enumerate(chunks) if _role(chunk)]
        if roles != ([0] if case.ops[op]["path"] == CHAT else []):
            verdict.wrong("a stream's role is not told once and first", f"{request_id}: {roles}")


def _chunks(case: Case, request_id: str) -> list[Json]:
    return [json.loads(event) for _, event in case.state["outputs"][request_id]["chunks"]]


def _role(chunk: Json) -> str:
    choice = (chunk.get("choices") or [{}])[0]
    return str((choice.get("delta") or {}).get("role") or "")


def check_usage(case: Case, verdict: Verdict) -> None:
    """All bodies name their number of tokens: it is what was counted and what clients are told."""
    for request_id, record in case.records.items():
        op = case.op_of(request_id)
        if op is None or record["state"] != "done" or request_id not in case.state["results"]:
            continue
        body = case.ops[op]["body"]
        head = head_of(case.state["results"][request_id])
        counts = [head.get("usage", {}).get("output"), *_told(case, request_id, record)]
        if set(counts) - {body["max_tokens"]} or head.get("finish_reason") != "length":
            said = f"{request_id}: {counts} of {body['max_tokens']}, {head.get('finish_reason')}"
            verdict.wrong("usage or finish reason is wrong", said)
        asks = bool(body.get("stream_options"))
        if record["stream"] == "1" and len(counts) != 1 + asks:
            verdict.wrong("usage is not told once where it was asked for", f"{request_id}: {asks}")


def _told(case: Case, request_id: str, record: Json) -> Iterator[int]:
    """Output tokens as the answer tells them, or the stream's chunks."""
    if record["stream"] == "1":
        bodies = _chunks(case, request_id) if request_id in case.state["outputs"] else []
    else:
        bodies = [json.loads(case.state["results"][request_id].partition("\n")[2] or "{}")]
    for body in bodies:
        if body.get("usage"):
            yield int(body["usage"]["completion_tokens"])
