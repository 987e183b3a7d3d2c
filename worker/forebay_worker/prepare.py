"""The engine call of a request: from its beginning, or where an earlier attempt was cut off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forebay_shared.records import Envelope, Usage
from forebay_worker.answers import NOTHING
from forebay_worker.continuation import continuation, may_continue
from forebay_worker.delivered import Delivered
from forebay_worker.engine import EngineCall, Traits
from forebay_worker.marks import TokenIds
from forebay_worker.resumable import GENERATING, Body
from forebay_worker.rewriter import Rewriter, compact
from forebay_worker.splice import with_token_ids, with_usage

_ASK_IDS = "return_token_ids"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call ready for the engine.

    `usage_added`: its usage is for us, not for the client. `continues`: what it emits can be gone
    on with after a cut. `before`: used by earlier attempts, whose stream `rewriter` goes on with.
    `assembles`: the client does not stream, so the chunks become one answer, those of earlier
    attempts (`events`) first.
    """

    call: EngineCall
    usage_added: bool = False
    ids: TokenIds = TokenIds.NONE
    continues: bool = False
    before: Usage = NOTHING
    rewriter: Rewriter | None = None
    assembles: bool = False
    events: Sequence[bytes] = ()


def prepare(
    envelope: Envelope, request_id: str, plan: Body | None = None, traits: Traits | None = None
) -> Prepared:
    """The call from the beginning; `plan` is its parsed body where it could be continued.

    A body that is not a JSON object goes as it is: the engine says better what is wrong with it.
    """
    if plan is None or traits is None or not may_continue(envelope.path, plan, traits):
        return _plain(envelope, request_id)
    if not envelope.stream:
        return _kept(envelope, request_id, plan, traits)
    body, kind = _with_ids(envelope.body, plan, traits)
    asked = with_usage(body)
    call = _call(envelope, request_id, envelope.path, body if asked is None else asked)
    return Prepared(call, usage_added=asked is not None, ids=kind, continues=True)


def go_on(
    envelope: Envelope, request_id: str, plan: Body, delivered: Delivered, traits: Traits
) -> Prepared | None:
    """The call that goes on after what was delivered; None where that cannot be exact."""
    found = continuation(envelope.path, plan, delivered, traits)
    if found is None:
        return None
    return Prepared(
        _call(envelope, request_id, found.path, found.body),
        usage_added=envelope.stream and not asks_usage(plan),
        ids=found.ids,
        continues=True,
        before=found.before,
        rewriter=found.rewriter,
        assembles=not envelope.stream,
        events=() if envelope.stream else delivered.events,
    )


def asks_usage(plan: Body) -> bool:
    """Whether the client wants the usage at the end of its stream."""
    options = plan.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _plain(envelope: Envelope, request_id: str) -> Prepared:
    body = None
    if envelope.stream and envelope.path in GENERATING:
        body = with_usage(envelope.body)
    call = EngineCall(
        request_id=request_id,
        path=envelope.path,
        body=envelope.body if body is None else body,
        stream=envelope.stream,
        headers=envelope.headers,
    )
    return Prepared(call, usage_added=body is not None)


def _kept(envelope: Envelope, request_id: str, plan: Body, traits: Traits) -> Prepared:
    """A request whose progress is kept streams inside, though its client does not."""
    body: Body = {**plan, "stream": True, "stream_options": {"include_usage": True}}
    kind = TokenIds.ASKED if plan.get(_ASK_IDS) else TokenIds.NONE
    if traits.token_ids and _ASK_IDS not in plan:
        kind, body[_ASK_IDS] = TokenIds.ADDED, True
    call = _call(envelope, request_id, envelope.path, compact(body))
    return Prepared(call, usage_added=False, ids=kind, continues=True, assembles=True)


def _with_ids(body: bytes, plan: Body, traits: Traits) -> tuple[bytes, TokenIds]:
    if plan.get(_ASK_IDS):
        return body, TokenIds.ASKED
    added = None
    if traits.token_ids and _ASK_IDS not in plan:
        added = with_token_ids(body)
    return (body, TokenIds.NONE) if added is None else (added, TokenIds.ADDED)


def _call(envelope: Envelope, request_id: str, path: str, body: bytes) -> EngineCall:
    return EngineCall(request_id, path, body, stream=True, headers=envelope.headers)
