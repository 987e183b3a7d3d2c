"""Redis URLs: what is understood, what is refused, and that secrets are never shown."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from redis.asyncio.connection import SSLConnection, UnixDomainSocketConnection

from forebay_shared.connect import connect, safe_url
from forebay_shared.connect.address import Kind, Node, read_url


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    path.touch()
    return path


def test_url_schemes(ca: Path) -> None:
    """redis, rediss and unix; certificates are checked unless the URL says otherwise."""
    secure = connect(f"rediss://user:p%40ss@host:7000/3?ssl_ca_certs={ca}").connection_pool
    assert issubclass(secure.connection_class, SSLConnection)
    connection = secure.make_connection()
    assert (connection.host, connection.port, connection.db) == ("host", 7000, 3)
    assert (connection.username, connection.password) == ("user", "p@ss")
    assert connection.ssl_context.check_hostname
    local = connect("unix:///tmp/a%20b/redis.sock?db=2").connection_pool
    assert issubclass(local.connection_class, UnixDomainSocketConnection)
    assert (local.make_connection().path, local.make_connection().db) == ("/tmp/a b/redis.sock", 2)


def test_cluster_url(ca: Path) -> None:
    """Nodes with commas between; login and certificates are for all of them."""
    one = read_url(f"rediss+cluster://user:p%40ss@a:7000,[::1]:7001,c/0?ssl_ca_certs={ca}")
    assert (one.kind, one.service) == (Kind.CLUSTER, "")
    assert one.nodes == (Node("a", 7000), Node("::1", 7001), Node("c", 6379))
    assert (one.options["username"], one.options["password"]) == ("user", "p@ss")
    assert one.options["connection_class"] is SSLConnection
    assert one.asking == one.options
    assert "p@ss" not in repr(one)


def test_sentinel_url() -> None:
    """The login before the @ is for the servers; the Sentinels have their own."""
    url = "redis+sentinel://:pw@a,b:5000/my%20master/3?sentinel_password=s%25&sentinel_username=u"
    one = read_url(url)
    assert (one.kind, one.service) == (Kind.SENTINEL, "my master")
    assert one.nodes == (Node("a", 26379), Node("b", 5000))
    assert one.options == {"password": "pw", "db": 3}
    assert one.asking == {"username": "u", "password": "s%"}
    assert read_url("redis+sentinel://a/main?db=2").options == {"db": 2}


def test_sentinels_are_asked_over_tls_where_servers_are(ca: Path) -> None:
    one = read_url(f"rediss+sentinel://a/main?ssl_ca_certs={ca}")
    assert one.asking == {"connection_class": SSLConnection, "ssl_ca_certs": str(ca)}


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis+cluster://:hunter2@", "host or host:port"),
        ("redis+cluster://:hunter2@a,,b", "host or host:port"),
        ("redis+cluster://:hunter2@a:b", "must begin with redis://"),
        ("redis+cluster://:hunter2@a:1/2", "database 0 alone"),
        ("redis+cluster://:hunter2@a:1?db=2", "option db"),
        ("redis+cluster://:hunter2@a:1?sentinel_password=x", "option sentinel_password"),
        ("redis+cluster://:hun/hunter2@a:1", "must begin with redis://"),
        ("redis+cluster://:hun#hunter2@a:1", "must begin with redis://"),
        ("redis+cluster://:pw@a:1#hunter2@", "%23"),
        ("redis+sentinel://:hunter2@a:1", "the service that they watch must follow"),
        ("redis+sentinel://:hunter2@a:1/main/x", "only the number of a database"),
        ("redis+sentinel://a/main?sentinel_password=hunter2&role=master", "option role"),
        ("redis+unix://:hunter2@/a", "must begin with redis://"),
        ("redis://:hunter2@a?ssl_cert_reqs=none", "asked for by rediss"),
        ("rediss://:hunter2@a?ssl_ca_certs=/nowhere/ca.pem", "there is no file /nowhere/ca.pem"),
        ("rediss+cluster://:hunter2@a?ssl_keyfile=/nowhere", "there is no file /nowhere"),
        ("rediss://:hunter2@a?ssl_cert_reqs=maybe", "none, optional, required"),
        ("localhost:6379", "must begin with redis://"),
        ("http://user:hunter2@host", "must begin with redis://"),
        ("redis://:hunter2/x@host:6379", "must begin with redis://"),
        ("redis://:hunter2@host:port", "must begin with redis://"),
        ("redis://:hun#hunter2@host", "percent-encoded"),
        ("redis://host/0#hunter2@", "%23"),
        ("redis://:hunter2@host/queue", "number of a database"),
        ("redis://:hunter2@host?protocol=3", "option protocol"),
        ("redis://host?password=hunter2", "option password"),
        ("rediss://host?db=x&ssl_password=hunter2", "must begin with redis://"),
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
