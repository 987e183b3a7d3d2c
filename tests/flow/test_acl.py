"""The ACL users that `forebay doctor --acl` prints have what Forebay needs, and no more."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner
from redis.asyncio import Redis
from tests.flow.processes import Child, until
from tests.servers import Server, start_server
from tests.vllm.rig import free_port

from forebay_shared.calls import Intake, Library
from forebay_shared.calls.start import start_library
from forebay_shared.cli import main
from forebay_shared.cli.doctor.acl import PASSWORD, as_commands
from forebay_shared.connect import connect
from forebay_shared.errors import CommandsRefused
from forebay_shared.keys import POOLS, Keys
from forebay_shared.rights import ALWAYS, probes, service_commands

pytestmark = pytest.mark.anyio

KEYS = Keys("default")
WELL = (
    "--appendonly", "yes", "--maxmemory", "200mb",
    "--client-output-buffer-limit", "normal 256mb 128mb 60",
)  # fmt: skip
UNTRIED = {"cluster|slots", "ping", "select"}
"""Called by the client itself and only now and then, or for URLs of other kinds."""


@dataclass
class Guarded:
    """A server with the two users; the default one is the test's own."""

    folder: Path
    server: Server
    admin: Redis
    children: list[Child] = field(default_factory=list)

    def url(self, user: str) -> str:
        return self.server.url.replace("://", f"://forebay-{user}:pw@")

    async def set_users(self, *changes: str) -> None:
        """The users as they are printed; `changes` to the service."""
        digest = "#" + hashlib.sha256(b"pw").hexdigest()
        for line in as_commands(["default"]).splitlines():
            await run(self.admin, *shlex.split(line.replace(PASSWORD, digest)))
        if changes:
            await run(self.admin, "ACL", "SETUSER", "forebay-service", *changes)

    async def forebay(self, *words: str) -> str:
        """What a command of the operator prints; it must succeed."""
        environment = {"FOREBAY_REDIS": self.url("operator")}
        result = await asyncio.to_thread(CliRunner().invoke, main, words, env=environment)
        assert result.exit_code == 0, (words, result.output)
        return result.stdout

    def start(self, module: str, *options: str) -> Child:
        arguments = ["--redis", self.url("service"), *options]
        child = Child(module, arguments, self.folder / f"{len(self.children)}.log")
        self.children.append(child)
        return child

    async def serve(self, profile: str = "zero") -> str:
        """A producer and a worker with a simulated engine, both ready; the producer's URL."""
        port = free_port()
        producer = self.start("forebay_producer", "--port", str(port))
        worker = self.start("forebay_worker", "--sim-profile", profile, "--slots", "8")
        url = f"http://127.0.0.1:{port}"

        async def ready() -> bool:
            for child in (producer, worker):
                assert child.code is None, child.tail()
            async with aiohttp.ClientSession() as client:
                try:
                    async with client.get(f"{url}/v1/models") as answer:
                        return answer.status == 200 and b'"sim"' in await answer.read()
                except aiohttp.ClientError:
                    return False

        await until(ready, 20, f"ready: {producer.log}")
        return url

    async def has_ended(self) -> bool:
        """Whether the youngest process has."""
        return self.children[-1].code is not None

    async def denied(self) -> list[str]:
        """What the server has refused anybody."""
        rows: Any = await run(self.admin, "ACL", "LOG")
        return [f"{row['username']} {row['object']}" for row in rows]


async def run(redis: Any, *words: str) -> Any:
    return await redis.execute_command(*words)


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    with start_server(tmp_path, extra=WELL) as server:
        async with connect(server.url) as admin:
            one = Guarded(tmp_path, server, admin)
            await one.set_users()
            yield one
            for child in one.children:
                if child.code is None:
                    child.kill()


def body(stream: bool = False, tokens: int = 3) -> dict[str, Any]:
    said = [{"role": "user", "content": "Hello"}]
    return {"model": "sim", "messages": said, "max_tokens": tokens, "stream": stream}


async def ask(client: aiohttp.ClientSession, url: str) -> None:
    """What clients do: answers, streams, requests that they leave and come back to."""
    path = f"{url}/v1/chat/completions"
    async with client.post(path, json=body(), headers={"Idempotency-Key": "k"}) as answer:
        assert answer.status == 200, await answer.text()
    async with client.post(path, json=body(stream=True)) as answer:
        assert (await answer.read()).rstrip().endswith(b"data: [DONE]")
    asynchronous = {"Prefer": "respond-async", "X-Priority": "low"}
    async with client.post(path, json=body(stream=True), headers=asynchronous) as answer:
        place = url + answer.headers["Location"]
    async with client.get(f"{place}/events") as answer:
        assert answer.status == 200
        await answer.read()
    async with client.get(f"{place}?wait=5") as answer:
        assert (await answer.json())["state"] == "done"
    async with client.delete(place) as answer:
        assert answer.status in (200, 409)


async def test_everything_works_under_the_users(guarded: Guarded) -> None:
    """Clients and operators get all they ask for, and the server has refused nobody anything."""
    await guarded.forebay("doctor", "--load")
    url = await guarded.serve()
    await run(guarded.admin, "CONFIG", "RESETSTAT")
    async with aiohttp.ClientSession() as client:
        await ask(client, url)
    assert '"ledger"' in await guarded.forebay("status", "--json")
    for words in (["pause"], ["resume"], ["settings", "set", "depth=5000"], ["settings", "show"]):
        await guarded.forebay(*words)
    workers = json.loads(await guarded.forebay("status", "--json"))["workers"]
    report = json.loads(await guarded.forebay("doctor", "--json", "--strict"))
    assert report["level"] == "ok"
    await guarded.forebay("drain", workers[0]["id"])
    await until(guarded.has_ended, 20, "the drained worker has ended")
    assert guarded.children[1].code == 0
    assert await guarded.denied() == []
    await assert_used(guarded)


async def assert_used(guarded: Guarded) -> None:
    """No right beside the library's is there for nothing."""
    stats = await guarded.admin.info("commandstats")
    used = {name.removeprefix("cmdstat_") for name in stats}
    assert probes(KEYS).keys() - used == {"wait"}  # only where the settings ask for replicas


def lacking(command: str) -> str:
    return rf"this Redis user lacks \+{command.replace('|', '[|]')};"


async def test_each_missing_right_is_named_at_the_start(guarded: Guarded) -> None:
    """Whichever one it is, and all of them if there are several; nothing is stored."""
    async with connect(guarded.server.url) as redis:
        await start_library(Library(redis))
    for command in sorted({*service_commands()} - UNTRIED):
        await guarded.set_users(f"-{command}")
        async with connect(guarded.url("service"), name="acl-test") as redis:
            with pytest.raises(CommandsRefused, match=lacking(command)):
                await start_library(Library(redis))
    await guarded.set_users("-xadd", "-hincrby", "-zcount")
    async with connect(guarded.url("service")) as redis:
        with pytest.raises(CommandsRefused, match=r"\+hincrby \+zcount \+xadd;"):
            await start_library(Library(redis))
    assert await guarded.admin.keys(f"{KEYS.every[:-1]}scratch*") == []
    assert set(ALWAYS) > UNTRIED


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        (["resetkeys", f"~{KEYS.every}"], f"lacks ~{POOLS};"),
        (["resetkeys", f"~{POOLS}"], f"lacks ~{KEYS.every};"),
        (["resetkeys", f"~{KEYS.layout}", f"~{KEYS.never}"], "lacks"),
    ],
)
async def test_missing_keys_are_named_at_the_start(
    guarded: Guarded, rules: list[str], told: str
) -> None:
    async with connect(guarded.server.url) as redis:
        await start_library(Library(redis))
    await guarded.set_users(*rules)
    async with connect(guarded.url("service")) as redis:
        with pytest.raises(CommandsRefused) as refused:
            await start_library(Library(redis))
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("-xclaim", "this Redis user lacks +xclaim;"),
        ("", "run `forebay doctor --load` of this version as the operator first"),
    ],
)
async def test_a_process_that_lacks_a_right_says_so_and_ends(
    guarded: Guarded, rule: str, told: str
) -> None:
    """Before it takes or admits anything; what was queued waits for one that may."""
    if rule:
        await guarded.forebay("doctor", "--load")
        await guarded.set_users(rule)
    children = [
        guarded.start("forebay_producer", "--port", str(free_port())),
        guarded.start("forebay_worker", "--sim-profile", "zero"),
    ]

    async def ended() -> bool:
        return all(child.code is not None for child in children)

    await until(ended, 20, "both ended")
    for child in children:
        assert child.code == 1
        assert told in child.tail()
        assert "Traceback" not in child.tail()
        assert "pw@" not in child.tail()


async def test_a_library_lost_meanwhile_loses_nothing(guarded: Guarded) -> None:
    """No process may load it: what runs and what waits ends well once the operator has."""
    await guarded.forebay("doctor", "--load")
    url = await guarded.serve("default")
    path, intake = f"{url}/v1/chat/completions", Intake(Library(guarded.admin))
    ids: list[str] = []
    async with aiohttp.ClientSession() as client:
        for _ in range(12):
            headers = {"Prefer": "respond-async"}
            async with client.post(path, json=body(tokens=40), headers=headers) as answer:
                assert answer.status == 202
                ids.append(answer.headers["Location"].rpartition("/")[2])
        assert await guarded.admin.zcard(f"{KEYS.every[:-1]}leases") == 8
        await run(guarded.admin, "FUNCTION", "FLUSH")
        async with client.post(path, json=body()) as answer:
            assert answer.status >= 500
        await guarded.forebay("doctor", "--load")

        async def all_done() -> bool:
            rows = [await intake.show(one) for one in ids]
            return all(row is not None and row.state == "done" for row in rows)

        await until(all_done, 20, "all done")
    ledger = json.loads(await guarded.forebay("status", "--json"))["ledger"]
    assert ledger["done"] == ledger["accepted"]
    assert all(child.code is None for child in guarded.children)
