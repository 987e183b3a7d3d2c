"""TLS: whom a client trusts, what it shows, and what it says when that does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.exceptions import RedisError
from tests.servers import Server
from tests.tls import Authority, tls_before

from forebay_shared.connect import connect, redis_away, why_unusable

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "authority")


async def refusal(url: str) -> str:
    """What the operator is told of a URL that does not work."""
    async with connect(url) as client:
        with pytest.raises(RedisError) as caught:
            await client.ping()
    assert redis_away(caught.value)  # for a process that serves already
    return why_unusable(caught.value)


async def test_trusted_certificate(server: Server, authority: Authority) -> None:
    options = f"?ssl_ca_certs={authority.ca}"
    async with (
        tls_before(server, authority) as place,
        connect(f"rediss://{place}{options}") as client,
    ):
        assert await client.ping()


async def test_foreign_certificate_is_refused(
    server: Server, authority: Authority, tmp_path: Path
) -> None:
    """By default, and with another CA; the option to name is told."""
    other = Authority(tmp_path / "other")
    async with tls_before(server, authority) as place:
        for options in ("", f"?ssl_ca_certs={other.ca}"):
            why = await refusal(f"rediss://{place}{options}")
            assert "not trusted" in why and "?ssl_ca_certs=" in why


async def test_certificate_for_another_host_is_refused(
    server: Server, authority: Authority
) -> None:
    """Unless the URL says that the name does not matter."""
    async with tls_before(server, authority) as place:
        url = f"rediss://{place.replace('127.0.0.1', 'localhost')}?ssl_ca_certs={authority.ca}"
        assert "mismatch" in (await refusal(url)).lower()
        async with connect(f"{url}&ssl_check_hostname=false") as client:
            assert await client.ping()


async def test_client_certificate(server: Server, authority: Authority) -> None:
    """Shown where the server asks for it; without one it hangs up."""
    certificate, key = authority.client
    async with tls_before(server, authority, wants_client=True) as place:
        url = f"rediss://{place}?ssl_ca_certs={authority.ca}"
        await refusal(url)  # this proxy does not say why
        async with connect(f"{url}&ssl_certfile={certificate}&ssl_keyfile={key}") as client:
            assert await client.ping()


async def test_server_that_is_gone_is_only_away(server: Server, authority: Authority) -> None:
    """Nothing to mend: it may come back."""
    async with tls_before(server, authority) as place:
        url = f"rediss://{place}?ssl_ca_certs={authority.ca}"
    assert await refusal(url) == ""
