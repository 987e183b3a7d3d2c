"""TLS in front of a server that has none: certificates for one test, and a proxy that ends TLS."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.servers import Server

_CHUNK = 64 * 1024


class Authority:
    """A CA with a certificate for 127.0.0.1 and one for a client, made by `openssl`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self.ca = folder / "ca.pem"
        self._openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "2", "-subj", "/CN=Test CA", "-keyout", "ca.key", "-out", "ca.pem",
        )  # fmt: skip
        self.server = self._issue("server", "subjectAltName=IP:127.0.0.1")
        self.client = self._issue("client", "extendedKeyUsage=clientAuth")

    def _issue(self, name: str, extension: str) -> tuple[Path, Path]:
        """Paths of a certificate and of its key."""
        self._openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr",
        )  # fmt: skip
        (self._folder / f"{name}.ext").write_text(extension)
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem",
        )  # fmt: skip
        return self._folder / f"{name}.pem", self._folder / f"{name}.key"

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self._folder, check=True, capture_output=True)

    def context(self, *, wants_client: bool) -> ssl.SSLContext:
        """Of a server that shows its certificate, and asks for one where it wants to know whom."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*self.server)
        if wants_client:
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@asynccontextmanager
async def tls_before(
    server: Server, authority: Authority, *, wants_client: bool = False
) -> AsyncIterator[str]:
    """`host:port` of a proxy that passes on to the server, on its unix socket, what TLS carried."""
    path = unquote(urlsplit(server.url).path)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(path)
        both = (_copy(reader, inner_writer), _copy(inner_reader, writer))
        await asyncio.gather(*both)

    context = authority.context(wants_client=wants_client)
    proxy = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    host, port = proxy.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        proxy.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    writer.close()
