"""The simulated engine as a server, and the adapter on it and on real vLLM."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

import aiohttp
import pytest
from tests.vllm.rig import chat_server
from tests.worker.engine.calls import answer, chat, chunks, completion, post, said, until_running

from forebay_worker.engine import (
    EngineBroken,
    EngineBusy,
    EngineCall,
    EngineError,
    EngineFailed,
    EngineRejected,
    EngineUnreachable,
)
from forebay_worker.engine.openai import OpenAIEngine

pytestmark = pytest.mark.anyio

WORKER = Path(__file__).resolve().parents[3] / "worker"
LONG = {"max_tokens": 1_000, "ignore_eos": True}


class SimProcess:
    """A simulated engine's process; `url` as it printed it."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "forebay_worker.engine.sim_http", *options]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(WORKER)},
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), f"it printed {line!r}"
        self.url = line.removeprefix("listening on ").strip()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def sim_process(*options: str) -> Iterator[SimProcess]:
    server = SimProcess(*options)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[SimProcess]:
    """One for the module, twenty times as fast as the real thing."""
    with sim_process("--speed=20", "--slots=4") as running:
        yield running


@pytest.fixture(scope="module", params=["sim", pytest.param("vllm", marks=pytest.mark.vllm)])
def any_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """URL and model of a simulated engine and of a real vLLM."""
    if request.param == "sim":
        with sim_process("--max-model-len=2048", "--model=tiny") as running:
            yield running.url, "tiny"
        return
    real = chat_server(tmp_path_factory.mktemp("vllm"))
    real.start()
    real.wait_ready()
    yield real.url, "tiny"
    real.stop()


@pytest.fixture
async def engine(server: SimProcess) -> AsyncIterator[OpenAIEngine]:
    """The adapter on the module's simulated server."""
    adapter = OpenAIEngine(server.url)
    await adapter.start()
    yield adapter
    await adapter.close()


@pytest.fixture
async def any_engine(any_server: tuple[str, str]) -> AsyncIterator[OpenAIEngine]:
    """The adapter on either server."""
    adapter = OpenAIEngine(any_server[0])
    await adapter.start()
    yield adapter
    await adapter.close()


def tiny(call: EngineCall) -> EngineCall:
    """The call for the model that both servers have, at temperature 0."""
    return replace(
        call, body=json.dumps({**json.loads(call.body), "model": "tiny", "temperature": 0}).encode()
    )


async def log_of(url: str, request_id: str) -> list[dict[str, Any]]:
    """The log's entries of one request."""
    async with aiohttp.ClientSession() as session, session.get(url + "/sim/log") as got:
        return [entry for entry in await got.json() if entry["id"] == request_id]


async def test_both_engines_are_well_and_name_their_models(any_engine: OpenAIEngine) -> None:
    """Health, models and an idle load."""
    load = await any_engine.load()
    assert await any_engine.health() is True
    assert await any_engine.models() == ["tiny"]
    assert (load.running, load.waiting, load.kv_usage) == (0, 0, 0.0)
    assert load.kv_tokens is not None
    assert load.kv_tokens >= 2_048


async def test_both_engines_stream_what_they_answer(any_engine: OpenAIEngine) -> None:
    """The same text, ids and usage whole and in chunks."""
    ask = {"max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
    whole = await answer(any_engine, tiny(chat(**ask)))
    usage = {"stream_options": {"include_usage": True}}
    got = await chunks(any_engine, tiny(chat(stream=True, **usage, **ask)))
    assert said(got) == said(whole)
    assert got[0]["choices"][0]["delta"]["role"] == "assistant"
    assert got[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert got[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 12
    assert {chunk["id"] for chunk in got} == {whole["id"]} == {"chatcmpl-r-1"}


async def test_both_engines_go_on_from_token_ids(any_engine: OpenAIEngine) -> None:
    """A chat cut after four tokens goes on as a completion."""
    ask = {"ignore_eos": True, "return_token_ids": True}
    whole = await answer(any_engine, tiny(chat(max_tokens=12, **ask)))
    prompt = whole["prompt_token_ids"] + said(whole).ids[:4]
    rest = await answer(any_engine, tiny(completion(prompt=prompt, max_tokens=8, **ask)))
    assert said(rest).ids == said(whole).ids[4:]


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "absent"}, 404, "model"),
        ({"max_tokens": "many"}, 400, None),
        ({"max_tokens": 5_000, "stream": True}, 400, "max_tokens"),
        ({"messages": []}, 400, None),
        ({"stop": [""]}, 400, None),
    ],
)
async def test_both_engines_refuse_alike(
    any_engine: OpenAIEngine, fields: dict[str, Any], status: int, param: str | None
) -> None:
    """Status and shape of an error."""
    call = chat(**{"model": "tiny", **fields})
    with pytest.raises(EngineRejected) as caught:
        await answer(any_engine, call)
    error = json.loads(caught.value.body)["error"]
    assert (caught.value.status, error["code"]) == (status, status)
    assert set(error) == {"message", "type", "param", "code"}
    assert param is None or error["param"] == param


@pytest.mark.parametrize("streaming", [True, False])
async def test_both_engines_stop_when_the_caller_does(
    any_engine: OpenAIEngine, streaming: bool
) -> None:
    """Streaming or not, nothing runs any more long before it would have been through."""
    call = tiny(chat(stream=streaming, **{**LONG, "max_tokens": 1_900}))
    running = asyncio.ensure_future((chunks if streaming else answer)(any_engine, call))
    await until_running(any_engine, 1)
    running.cancel()
    await until_running(any_engine, 0, wait_s=4)


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_caller_that_leaves_is_logged_within_a_fifth_of_a_second(
    server: SimProcess, engine: OpenAIEngine, streaming: bool
) -> None:
    """The log tells the end, so that tests can prove it."""
    name = f"left-{streaming}"
    call = chat(name, stream=streaming, **{**LONG, "max_tokens": 5_000})
    running = asyncio.ensure_future((chunks if streaming else answer)(engine, call))
    await until_running(engine, 1)
    running.cancel()
    left_s = time()
    await until_running(engine, 0)
    (entry,) = await log_of(server.url, name)
    assert entry["outcome"] == "aborted"
    assert entry["ended_s"] - left_s < 0.2
    assert entry["started_s"] < entry["ended_s"]


async def test_a_waiting_call_that_is_left_never_runs(
    server: SimProcess, engine: OpenAIEngine
) -> None:
    """Four slots, five calls."""
    running = [asyncio.ensure_future(answer(engine, chat(**LONG))) for _ in range(4)]
    await until_running(engine, 4)
    fifth = asyncio.ensure_future(answer(engine, chat("fifth", **LONG)))
    async with asyncio.timeout(5):
        while (await engine.load()).waiting != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    for task in (fifth, *running):
        task.cancel()
    await until_running(engine, 0)
    (entry,) = await log_of(server.url, "fifth")
    assert (entry["outcome"], entry["output_tokens"]) == ("aborted", 0)
    assert (await engine.load()).waiting == 0


async def test_half_a_body_is_no_call(server: SimProcess, engine: OpenAIEngine) -> None:
    """A client that leaves while it sends has asked for nothing."""
    host, port = server.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = "POST /v1/completions HTTP/1.1\r\nHost: sim\r\nX-Request-Id: half\r\n"
    writer.write(f"{head}Content-Length: 100\r\n\r\n{{".encode())
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    await answer(engine, chat(max_tokens=1))
    assert await log_of(server.url, "half") == []


FAULTS: list[tuple[str, int, bool, type[EngineError], int]] = [
    ("500", 0, True, EngineFailed, 0),
    ("500", 2, False, EngineFailed, 0),
    ("503", 0, True, EngineBusy, 0),
    ("503", 0, False, EngineBusy, 0),
    ("error_event", 2, True, EngineFailed, 3),
    ("error_event", 2, False, EngineFailed, 0),
    ("broken", 0, True, EngineBroken, 0),
    ("broken", 0, False, EngineBroken, 0),
    ("broken", 2, True, EngineBroken, 3),
    ("broken", 2, False, EngineBroken, 0),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: "-".join(map(str, fault[:3])))
async def test_faults_arrive_as_the_adapter_names_them(
    engine: OpenAIEngine, fault: tuple[str, int, bool, type[EngineError], int]
) -> None:
    """What the simulation orders in process comes out the same over HTTP."""
    kind, after, streaming, error, events = fault
    order = {"fail": kind, "after_tokens": after}
    got = []
    with pytest.raises(error) as caught:
        async for event in engine.generate(chat(stream=streaming, max_tokens=5, sim=order)):
            got.append(event)
    assert len(got) == events
    if isinstance(caught.value, EngineFailed):
        assert caught.value.status == json.loads(caught.value.body)["error"]["code"] == 500
    assert await engine.health() is True


async def test_an_abort_arrives_as_a_finish(engine: OpenAIEngine) -> None:
    """To the adapter it is no failure."""
    order = {"fail": "abort", "after_tokens": 1}
    got = await chunks(engine, chat(stream=True, max_tokens=5, sim=order))
    assert got[-1]["choices"][0]["finish_reason"] == "abort"


async def test_a_crash_ends_the_process() -> None:
    """At once, with all it ran; the port refuses."""
    with sim_process("--speed=20") as doomed:
        engine = OpenAIEngine(doomed.url)
        await engine.start()
        neighbour = asyncio.ensure_future(answer(engine, chat(**LONG)))
        await until_running(engine, 1)
        order = {"fail": "crash", "after_tokens": 2}
        got = []
        with pytest.raises(EngineBroken):
            async for event in engine.generate(chat(stream=True, sim=order)):
                got.append(event)
        with pytest.raises(EngineBroken):
            await neighbour
        assert doomed.process.wait(5) == 1
        assert 1 <= len(got) <= 3  # the last events may be lost with the process
        with pytest.raises(EngineUnreachable):
            await answer(engine, chat())
        assert await engine.health() is False
        await engine.close()


async def test_sigterm_aborts_what_runs() -> None:
    """As vLLM: finish reason `abort` under status 200, then the process ends."""
    with sim_process("--speed=20") as stopped:
        engine = OpenAIEngine(stopped.url)
        await engine.start()
        running = [
            asyncio.ensure_future(chunks(engine, chat(stream=True, **LONG))),
            asyncio.ensure_future(answer(engine, chat(**LONG))),
        ]
        await until_running(engine, 2)
        stopped.process.send_signal(signal.SIGTERM)
        ends = [said(got).finish for got in await asyncio.gather(*running)]
        assert ends == ["abort", "abort"]
        await asyncio.to_thread(stopped.process.wait, 5)
        await engine.close()


async def test_a_unix_socket_serves_too(tmp_path: Path) -> None:
    """The line it prints names the socket; a profile may be chosen and changed."""
    path = str(tmp_path / "engine.sock")
    with sim_process(f"--uds={path}", "--profile=zero", "--slots=3") as server:
        assert server.url == f"unix:{path}"
        connector = aiohttp.UnixConnector(path)
        async with aiohttp.ClientSession("http://sim", connector=connector) as session:
            async with session.get("/health") as got:
                assert got.status == 200
            async with session.get("/absent") as got:
                assert got.status == 404
            body = post("/v1/completions", prompt="a", max_tokens=2).body
            async with session.post("/v1/completions", data=body) as got:
                assert (await got.json())["usage"]["completion_tokens"] == 2


async def test_headers_reach_the_engine(server: SimProcess, engine: OpenAIEngine) -> None:
    """Priority is read from the header; what is no number is refused."""
    call = replace(chat(max_tokens=1), headers={"X-Vllm-Priority": "soon"})
    with pytest.raises(EngineRejected):
        await answer(engine, call)
    assert await answer(engine, replace(call, headers={"X-Vllm-Priority": "-5"}))


async def test_metrics_count_tokens_and_ends(server: SimProcess, engine: OpenAIEngine) -> None:
    """Under vLLM's names, from one page to the next."""
    before = await counters(server.url)
    await answer(engine, completion(prompt=[7, 8, 9], max_tokens=5, ignore_eos=True))
    after = await counters(server.url)
    grown = {name: value - before[name] for name, value in after.items() if value != before[name]}
    assert grown == {
        "prompt_tokens_total": 3,
        "generation_tokens_total": 5,
        'request_success_total{finished_reason="length"': 1,
    }


async def counters(url: str) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(url + "/metrics") as got:
        lines = (await got.text()).splitlines()
    samples = (line.removeprefix("vllm:").rsplit(" ", 1) for line in lines if line[0] != "#")
    return {name.split("{engine")[0].split(",")[0]: float(value) for name, value in samples}


@pytest.mark.parametrize("streaming", [True, False])
async def test_the_official_sdk_reads_the_answers(server: SimProcess, streaming: bool) -> None:
    """Shapes fit the client that most people have."""
    openai = pytest.importorskip("openai")
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none") as client:
        ask: dict[str, Any] = {"model": "sim", "messages": [{"role": "user", "content": "hi"}]}
        if streaming:
            parts = [p async for p in await client.chat.completions.create(stream=True, **ask)]
            assert parts[-1].choices[0].finish_reason == "stop"
        else:
            got = await client.chat.completions.create(**ask)
            assert got.usage.completion_tokens > 0
            vectors = await client.embeddings.create(model="sim", input=["a", "b"])
            assert [len(item.embedding) for item in vectors.data] == [64, 64]
