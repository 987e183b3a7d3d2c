"""Producer and worker speak TLS to Redis, and end with a reason where they cannot."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from tests.flow.identities import assert_identities
from tests.flow.load import body_of
from tests.flow.processes import Child, until
from tests.flow.system import running
from tests.servers import Server, start_server
from tests.tls import Authority, tls_before
from tests.vllm.rig import free_port

pytestmark = pytest.mark.anyio


class Secured:
    """A server behind TLS."""

    def __init__(self, server: Server, url: str) -> None:
        self.url = url
        self.stop = server.stop


async def test_requests_pass_over_tls(tmp_path: Path) -> None:
    """With certificates on both sides; a wrong CA ends producer and worker at their start."""
    authority, other = Authority(tmp_path / "authority"), Authority(tmp_path / "other")
    server = start_server(tmp_path)
    async with tls_before(server, authority, wants_client=True) as place:
        certificate, key = authority.client
        shown = f"&ssl_certfile={certificate}&ssl_keyfile={key}"
        url = f"rediss://{place}/0?ssl_ca_certs={authority.ca}{shown}"
        secured = Secured(server, url)
        async with running(tmp_path, ["sim"], producers=1, server=secured) as system:
            await system.know("sim")
            async with aiohttp.ClientSession() as client:
                chat = f"{system.producers[0]}/v1/chat/completions"
                async with client.post(chat, json=body_of("over TLS")) as answer:
                    assert answer.status == 200, await answer.text()
            assert (await assert_identities(system))["done"] == 1
            await assert_ends(tmp_path, url.replace(str(authority.ca), str(other.ca)))


async def assert_ends(folder: Path, url: str) -> None:
    """A producer and a worker with this URL end at once, and say what to mend."""
    producer = ["--redis", url, "--port", str(free_port())]
    worker = ["--redis", url, "--engine", "sim"]
    children = [
        Child("forebay_producer", producer, folder / "refused-producer.log"),
        Child("forebay_worker", worker, folder / "refused-worker.log"),
    ]

    async def ended() -> bool:
        return all(child.code is not None for child in children)

    await until(ended, 15, "both end")
    for child in children:
        assert child.code == 1
        assert "not trusted" in child.tail() and "ssl_ca_certs" in child.tail()
