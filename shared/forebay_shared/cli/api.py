"""A client of the producer's HTTP API, for the commands that speak to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import aiohttp
import click

from forebay_shared.cli.lines import split_lines
from forebay_shared.cli.terminal import Problem

DEFAULT_URL = "http://127.0.0.1:8000"
CONNECT_S = 5.0
SILENCE_S = 60.0
"""A stream that says nothing for so long is broken: a producer comments every 10 s."""

STALE_MODEL_S = 60
"""Workers register their models every 5 s."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Place:
    """Where a producer is, and the key to show it."""

    url: str
    api_key: str | None = field(default=None, repr=False)


class Unreachable(Problem):
    """No producer answers at the URL; start one, or name another."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer as it came. Header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def good(self) -> bool:
        return self.status < 400

    def json(self) -> Any:
        """The body's value. Raises Problem where it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise Problem(
                f"the answer (status {self.status}) is not JSON; does --url name a producer?"
            ) from None

    def value(self) -> Any:
        """The body's value, or its text where it is not JSON, as a proxy's may be."""
        try:
            return json.loads(self.body)
        except ValueError:
            return self.body.decode(errors="replace")

    def record(self, *names: str) -> dict[str, Any]:
        """The object in a good answer, which has these fields. Raises Problem for any other."""
        value = self.require().json()
        if not isinstance(value, dict) or not value.keys() >= set(names):
            raise Problem("the answer is not a producer's; does --url name one?")
        return value

    def require(self) -> Self:
        """This answer if it is a good one. Raises Problem with the server's words and advice."""
        if not self.good:
            raise Problem(f"{self.words()}{_advice(self)}")
        return self

    def words(self) -> str:
        """What the server says is wrong."""
        said = error_in(self.value()).get("message")
        return str(said) if said else f"the server answered with status {self.status}"

    def models(self) -> list[str]:
        """The names in an answer to `/v1/models`; those last that no worker serves any more."""
        rows = self.record("data")["data"]
        # `created` is when a worker has last registered the model; it stays listed for a day.
        newest = max((one.get("created", 0) for one in rows), default=0)
        rows = sorted(rows, key=lambda one: one.get("created", 0) < newest - STALE_MODEL_S)
        return [str(one["id"]) for one in rows]

    def retry_after_s(self) -> float | None:
        """Seconds to wait before coming back, or None where the answer names none."""
        for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
            try:
                return max(float(self.headers[name]) / unit, 0.0)
            except (KeyError, ValueError):
                continue
        return None


def error_in(body: object) -> dict[str, Any]:
    """The error of a body in OpenAI's shape; empty where it has none."""
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}


def _advice(answer: Answer) -> str:
    retry_s = answer.retry_after_s()
    if answer.status == 401:
        return " (give the key with --api-key or in FOREBAY_API_KEY)"
    if answer.status in (429, 503) and retry_s is not None:
        return f" (come back in {retry_s:.0f} s)"
    return ""


class Producer:
    """One producer. Use it as an async context manager; raises Unreachable where none answers."""

    def __init__(self, place: Place) -> None:
        self.place = place
        headers = {"Authorization": f"Bearer {place.api_key}"} if place.api_key else {}
        self._session = aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            connector=aiohttp.TCPConnector(limit=0),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One call, whatever its status."""
        async with self._open(method, path, body, headers or {}) as response:
            return Answer(response.status, _lower(response.headers), await response.read())

    async def events(
        self, path: str, body: bytes, headers: Mapping[str, str]
    ) -> AsyncIterator[bytes]:
        """The data of each event of a stream. Raises Problem where the answer is an error."""
        async with self._open("POST", path, body, headers, SILENCE_S) as response:
            if response.status >= 400:
                raw = await response.read()
                Answer(response.status, _lower(response.headers), raw).require()
            async for line in split_lines(response.content.iter_any()):
                if line.startswith(b"data:"):
                    yield line[5:].strip()

    async def models(self) -> list[str]:
        """The models that can be asked for; those last that no worker serves any more."""
        return (await self.call("GET", "/v1/models")).models()

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        silence_s: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        sent = dict(headers) | ({"Content-Type": "application/json"} if body is not None else {})
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silence_s)
        url = self.place.url + path
        try:
            async with self._session.request(
                method, url, data=body, headers=sent, timeout=timeout
            ) as response:
                yield response
        except aiohttp.ClientConnectorError as error:
            raise Unreachable(_nobody(self.place.url)) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unreachable(
                f"the connection to {self.place.url} broke off ({type(error).__name__}); try again"
            ) from error


def _nobody(url: str) -> str:
    return (
        f"no producer answers at {url}; start one with `forebay up`, "
        "or name it with --url or in FOREBAY_URL"
    )


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def place_options(command: _Command) -> _Command:
    """`--url` and `--api-key`, given to the command as `url` and `api_key`."""
    key = click.option(
        "--api-key", envvar="FOREBAY_API_KEY", help="API key. [env var: FOREBAY_API_KEY]"
    )
    url = click.option(
        "--url",
        envvar="FOREBAY_URL",
        default=DEFAULT_URL,
        callback=_checked_url,
        help=f"Where the producer is. [env var: FOREBAY_URL; default: {DEFAULT_URL}]",
    )
    return url(key(command))


def _checked_url(_: click.Context, __: click.Parameter, url: str) -> str:
    """The URL without a slash or `/v1` at its end: people paste the SDK's base URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise click.BadParameter(f"{url!r} is not a URL like {DEFAULT_URL}")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")
