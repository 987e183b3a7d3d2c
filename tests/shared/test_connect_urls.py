"""Redis URLs: what is understood, what is refused, and that secrets are never shown."""

from __future__ import annotations

import traceback

import pytest
from redis.asyncio.connection import SSLConnection, UnixDomainSocketConnection

from forebay_shared.connect import connect, safe_url


def test_url_schemes() -> None:
    """redis, rediss and unix; certificates are checked unless the URL says otherwise."""
    secure = connect("rediss://user:p%40ss@host:7000/3?ssl_ca_certs=/ca.pem").connection_pool
    assert secure.connection_class is SSLConnection
    connection = secure.make_connection()
    assert (connection.host, connection.port, connection.db) == ("host", 7000, 3)
    assert (connection.username, connection.password) == ("user", "p@ss")
    assert connection.ssl_context.check_hostname
    local = connect("unix:///tmp/a%20b/redis.sock?db=2").connection_pool
    assert local.connection_class is UnixDomainSocketConnection
    assert (local.make_connection().path, local.make_connection().db) == ("/tmp/a b/redis.sock", 2)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("localhost:6379", "must begin with redis://"),
        ("http://user:hunter2@host", "must begin with redis://"),
        ("redis+cluster://:hunter2@host", "must begin with redis://"),
        ("redis://:hunter2/x@host:6379", "must begin with redis://"),
        ("redis://:hunter2@host:port", "must begin with redis://"),
        ("redis://:hun#hunter2@host", "percent-encoded"),
        ("redis://host/0#hunter2@", "%23"),
        ("redis://:hunter2@host/queue", "number of a database"),
        ("redis://:hunter2@host?protocol=3", "option protocol"),
        ("redis://host?password=hunter2", "option password"),
        ("redis://host?db=x&ssl_password=hunter2", "must begin with redis://"),
        ("unix://:hunter2@redis.sock", "absolute"),
    ],
)
def test_unusable_url_is_refused_without_its_secret(url: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as caught:
        connect(url)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:secret@host", "redis://:***@host"),
        (
            "rediss://user:secret@host/1?ssl_ca_certs=/ca",
            "rediss://user:***@host/1?ssl_ca_certs=/ca",
        ),
        ("redis://secret@host", "redis://***@host"),
        ("redis://user:sec@ret/#?x@host", "redis://user:***@host"),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock?db=1"),
        ("unix://user:secret@/run/redis.sock", "unix://user:***@/run/redis.sock"),
        ("redis://host?ssl_password=secret&db=1", "redis://host?ssl_password=***&db=1"),
        ("redis+sentinel://:secret@a:1,b:2/main", "redis+sentinel://:***@a:1,b:2/main"),
        ("secret", "***"),
    ],
)
def test_safe_url_masks_the_password(url: str, shown: str) -> None:
    assert safe_url(url) == shown
