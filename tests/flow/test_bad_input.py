"""Bad input gets a clear error, loses nothing, and the next request is served."""

from __future__ import annotations

import gzip
import json
from typing import Any

import aiohttp
import pytest
from tests.flow.engines import EngineUnderTest
from tests.flow.identities import assert_identities
from tests.flow.processes import until
from tests.flow.system import System

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
MIB = 1024 * 1024


def good(model: str, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "hello"}
    return {"model": model, "messages": [message], "max_tokens": 4, **fields}


def cases(model: str) -> dict[str, tuple[int, bytes, dict[str, str]]]:
    """Name → (expected status, body, headers)."""
    sane = json.dumps(good(model)).encode()
    return {
        "malformed": (400, b'{"model": ', {}),
        "empty": (400, b"", {}),
        "not an object": (400, b"[1, 2]", {}),
        "not utf-8": (400, b'{"model": "\xff\xfe"}', {}),
        "no model": (400, json.dumps({"messages": []}).encode(), {}),
        "model of a wrong type": (400, json.dumps(good(model) | {"model": 7}).encode(), {}),
        "stream of a wrong type": (400, json.dumps(good(model, stream=7)).encode(), {}),
        "max_tokens of a wrong type": (400, json.dumps(good(model, max_tokens="x")).encode(), {}),
        "messages of a wrong type": (400, json.dumps(good(model, messages=7)).encode(), {}),
        "unknown model": (404, json.dumps(good("nobody")).encode(), {}),
        "too large": (413, b'{"model":"' + b"x" * (MIB + 1) + b'"}', {}),
        "unpacks too large": (413, gzip.compress(b" " * 64 * MIB), {"Content-Encoding": "gzip"}),
        "unknown encoding": (415, sane, {"Content-Encoding": "zebra"}),
        "unknown class": (400, sane, {"X-Priority": "royal"}),
        "time-out that is none": (400, sane, {"X-Request-Timeout": "soon"}),
        "negative time-out": (400, sane, {"X-Request-Timeout": "-1"}),
        "long idempotency key": (400, sane, {"Idempotency-Key": "k" * 5_000}),
    }


async def test_each_bad_request_gets_a_clear_error(
    shared_system: System, engine_urls: list[EngineUnderTest], model: str
) -> None:
    """OpenAI's error shape each time; nothing but the good request is ever accepted."""
    url = shared_system.producers[0] + CHAT
    before = (await shared_system.status())["ledger"]
    async with aiohttp.ClientSession() as client:
        for name, (status, body, headers) in cases(model).items():
            headers = {"Content-Type": "application/json", **headers}
            async with client.post(url, data=body, headers=headers) as answer:
                raw = await answer.read()
            assert answer.status == status, (name, answer.status, raw[:300])
            error = json.loads(raw)["error"]
            assert error["message"], name
            assert error["type"], name
            assert answer.headers["x-request-id"], name
        async with client.post(url, json=good(model)) as answer:
            assert answer.status == 200, await answer.text()
    ledger = await assert_identities(shared_system)
    assert ledger["done"] == before.get("done", 0) + 1
    judged = ledger["accepted"] - before.get("accepted", 0) - 1
    assert judged <= 2, "only what the engine itself judges may have been accepted"


async def test_undecodable_entries_become_dead_letters(shared_system: System, model: str) -> None:
    """Entries put straight into a stream by something else: the next request is served."""
    stream = f"fb:{{{shared_system.library.pool}}}:queue:normal:default:0"
    junk: list[dict[str, bytes]] = [
        {"x": b"\xff\xfe"},
        {"id": b"nobody", "wire": b"1", "head": b"{", "body": b""},
        {"id": b"", "wire": b"x", "head": b"\x80", "body": b"\x00"},
    ]
    async with aiohttp.ClientSession() as client:
        for number, fields in enumerate(junk):
            await shared_system.redis.xadd(stream, fields)  # type: ignore[arg-type]
            async with client.post(shared_system.producers[0] + CHAT, json=good(model)) as answer:
                assert answer.status == 200, (number, await answer.text())

    async def buried() -> bool:
        return bool((await shared_system.status())["ledger"].get("undecodable") == len(junk))

    await until(buried, 5, "the foreign entries are dead letters")
    letters = await shared_system.redis.xrange(f"fb:{{{shared_system.library.pool}}}:dead")
    assert [fields[b"reason"] for _, fields in letters] == [b"undecodable"] * len(junk)
    await assert_identities(shared_system)


async def test_unknown_paths_and_methods(shared_system: System) -> None:
    async with aiohttp.ClientSession() as client:
        for method, path, status in (
            ("GET", "/v1/nothing", 404),
            ("GET", CHAT, 405),
            ("GET", "/v1/requests/not-an-id", 404),
            ("DELETE", "/v1/requests/default.01ARZ3NDEKTSV4RRFFQ69G5FAV", 410),
        ):
            async with client.request(method, shared_system.producers[0] + path) as answer:
                body = await answer.json()
            assert answer.status == status, (path, body)
            assert body["error"]["message"], path
