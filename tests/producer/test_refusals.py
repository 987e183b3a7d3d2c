"""Refusals and bad requests: OpenAI's shape, an id, and a Retry-After that SDKs obey."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.producer.running import BODY, CHAT, QUICK, Running, serving
from tests.producer.scripted import working
from tests.producer.scripts import answer

from forebay_shared.settings import PoolSettings

pytestmark = pytest.mark.anyio


async def change(one: Running, **changes: Any) -> PoolSettings:
    """Change the pool's settings and wait until the producer knows."""
    pool = one.producer.replica.pools["default"]
    settings, epoch = await pool.operator.settings()
    changed = settings.model_copy(update=changes)
    await pool.operator.change_settings(changed, epoch)
    await pool.refresh()
    return changed


def depth_of(settings: PoolSettings, depth: int) -> Any:
    return tuple(one.model_copy(update={"depth": depth}) for one in settings.classes)


async def test_a_full_class_is_503_with_a_retry_after(redis_url: str) -> None:
    async with serving(redis_url) as one:
        await change(one, classes=depth_of(PoolSettings(), 2), kept_share=0)
        for n in range(2):
            body = {**BODY, "seed": n}
            await one.http.post(CHAT, json=body, headers={"prefer": "respond-async"})
        reply = await one.http.post(CHAT, json=BODY)
        status = await one.producer.replica.pools["default"].operator.status()
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "queue_full")
    seconds = int(reply.headers["retry-after"])
    milliseconds = int(reply.headers["retry-after-ms"])
    assert 1 <= seconds <= 60
    assert seconds - 1 <= milliseconds / 1000 <= seconds
    assert "x-should-retry" not in reply.headers
    assert status["ledger"]["accepted"] == 2


async def test_the_sdk_comes_back_as_told_and_is_served(redis_url: str) -> None:
    async with serving(redis_url) as one:
        await change(one, classes=depth_of(PoolSettings(), 1), kept_share=0, retry_clamp_ms=1_000)
        first = await one.http.post(CHAT, json=BODY, headers={"prefer": "respond-async"})
        patient = one.sdk.with_options(max_retries=3)
        async with working(redis_url, answer):
            await one.http.get(first.headers["location"] + "?wait=5")
            assert (await patient.chat.completions.create(**BODY)).choices


async def test_a_draining_pool_is_503(redis_url: str) -> None:
    async with serving(redis_url) as one:
        await one.producer.replica.pools["default"].operator.switch(draining=True)
        reply = await one.http.post(CHAT, json=BODY)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "draining")
    assert "retry-after" in reply.headers


async def test_a_body_over_the_limit_is_413(redis_url: str) -> None:
    async with serving(redis_url) as one, working(redis_url, answer):
        await change(one, body_bytes=1_000)
        text = "é" * 400
        fits = b'{"model":"m","x":"' + text.encode() + b'"}'
        fits = fits.replace(b'\xc3\xa9"}', b"\xc3\xa9" + b"y" * (1_000 - len(fits)) + b'"}')
        assert (await one.http.post(CHAT, content=fits)).status_code == 200

        async def chunked() -> Any:
            yield fits
            yield b" "

        for content in (fits + b" ", chunked()):
            reply = await one.http.post(CHAT, content=content)
            assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")
        # The connection is usable, or closed in order; either way the next request works.
        assert (await one.http.post(CHAT, content=fits)).status_code == 200


async def test_a_body_that_stops_coming_is_408(redis_url: str) -> None:
    """A slow one is taken, as long as bytes come; then the connection is closed."""
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n".encode()
    async with serving(redis_url, timings=replace(QUICK, upload_silence_s=0.3)) as one:
        host, port = one.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head)
        for byte in (b"{", b"}"):
            await asyncio.sleep(0.2)
            writer.write(byte)
        raw = await reader.read()
        writer.close()
    assert raw.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"upload_timeout"' in raw


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "unknown_url"),
        ("POST", "/", 404, "unknown_url"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models/", 404, "model_not_found"),
        ("POST", CHAT + "/", 404, "unknown_url"),
    ],
)
async def test_wrong_urls_and_methods_are_told_in_openais_shape(
    redis_url: str, method: str, path: str, status: int, code: str
) -> None:
    async with serving(redis_url) as one:
        reply = await one.http.request(method, path)
    assert reply.status_code == status
    assert reply.json()["error"]["code"] == code
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    assert reply.headers["x-request-id"]


async def test_bad_bodies_are_400_and_never_queued(redis_url: str) -> None:
    async with serving(redis_url) as one:
        for raw in (b"", b"[]", b'{"messages":[]}', b'{"model":"m","stream":"x"}', b"\xff"):
            reply = await one.http.post(CHAT, content=raw)
            assert reply.status_code == 400
            assert reply.json()["error"]["type"] == "invalid_request_error"
        status = await one.producer.replica.pools["default"].operator.status()
    assert status["ledger"]["accepted"] == 0


async def test_an_unexpected_error_is_500_in_openais_shape(redis_url: str) -> None:
    async with serving(redis_url) as one:
        one.producer.replica.pools["default"].admitter.admit = None  # type: ignore[assignment]
        reply = await one.http.post(CHAT, json=BODY)
    assert (reply.status_code, reply.json()["error"]["type"]) == (500, "server_error")
    assert "NoneType" not in reply.text


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    def row(key: str, tenant: str, more: str) -> str:
        digest = hashlib.sha256(key.encode()).hexdigest()
        return f'[[keys]]\nsha256 = "{digest}"\ntenant = "{tenant}"\n{more}\n'

    path = tmp_path / "keys.toml"
    path.write_text(
        row("k-a", "a", 'highest_class = "low"') + row("k-b", "b", "limits = { depth = 1 }")
    )
    return path


def bearer(key: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", **more}


async def test_with_keys_strangers_are_401(redis_url: str, keys_file: Path) -> None:
    async with serving(redis_url, keys_file=keys_file) as one:
        for headers in ({}, bearer("wrong")):
            for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("GET", "/v1/requests/x")):
                reply = await one.http.request(method, path, headers=headers)
                assert (reply.status_code, reply.json()["error"]["code"]) == (
                    401,
                    "invalid_api_key",
                )
        with pytest.raises(openai.AuthenticationError):
            await one.sdk.chat.completions.create(**BODY)
        assert (await one.http.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    ("host", "statuses"), [("0.0.0.0", [401, 401, 200]), ("127.0.0.1", [200, 200, 200])]
)
async def test_strangers_who_reach_us_get_no_metrics(
    redis_url: str,
    keys_file: Path,
    caplog: pytest.LogCaptureFixture,
    host: str,
    statuses: list[int],
) -> None:
    async with serving(redis_url, keys_file=keys_file, host=host) as one:
        asks = [one.http.get("/metrics", headers=h) for h in ({}, bearer("wrong"), bearer("k-a"))]
        assert [(await ask).status_code for ask in asks] == statuses
        assert (await one.http.get("/readyz")).status_code == 200
    warned = any(row.message == "metrics_need_key" for row in caplog.records)
    assert warned == (host == "0.0.0.0")


async def test_a_tenant_sees_its_own_requests_alone(redis_url: str, keys_file: Path) -> None:
    async with serving(redis_url, keys_file=keys_file) as one, working(redis_url, answer):
        sent = await one.http.post(CHAT, json=BODY, headers=bearer("k-a", prefer="respond-async"))
        path = sent.headers["location"]
        assert (await one.http.get(path + "?wait=5", headers=bearer("k-a"))).status_code == 200
        for method, part in (("GET", ""), ("GET", "/events"), ("DELETE", "")):
            reply = await one.http.request(method, path + part, headers=bearer("k-b"))
            assert reply.status_code == 404


async def test_the_class_is_capped_by_the_key(redis_url: str, keys_file: Path) -> None:
    async with serving(redis_url, keys_file=keys_file) as one, working(redis_url, answer) as worker:
        headers = bearer("k-a", **{"x-priority": "critical"})
        reply = await one.http.post(CHAT, json=BODY, headers=headers)
        assert reply.headers["x-forebay-class"] == "low"
    assert (worker.granted[0].class_name, worker.granted[0].tenant) == ("low", "a")


async def test_a_tenants_limit_is_429_and_spares_the_others(
    redis_url: str, keys_file: Path
) -> None:
    async with serving(redis_url, keys_file=keys_file) as one:

        async def submit(key: str) -> int:
            headers = bearer(key, prefer="respond-async")
            reply = await one.http.post(CHAT, json=BODY, headers=headers)
            if reply.status_code == 429:
                assert reply.json()["error"]["type"] == "rate_limit_error"
                assert 1 <= int(reply.headers["retry-after"]) <= 60
            return reply.status_code

        assert [await submit(key) for key in ("k-b", "k-b", "k-a", "k-a")] == [202, 429, 202, 202]
