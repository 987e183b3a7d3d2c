"""The admin listener: `/healthz`, `/readyz`, `/metrics`."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from forebay_shared.metrics import Metrics
from forebay_worker.bells import BLOCK_S
from forebay_worker.drain import Drain
from forebay_worker.link import Link
from forebay_worker.options import Address
from forebay_worker.pulse import Pulse

SILENT_S = 3 * BLOCK_S
"""A worker that Redis has not answered for so long only looks alive."""


class Health:
    """Says whether the process lives, whether it serves, and what it counted."""

    def __init__(self, link: Link, pulse: Pulse, drain: Drain, metrics: Metrics) -> None:
        self._link = link
        self._pulse = pulse
        self._drain = drain
        self._metrics = metrics
        self._runner: web.AppRunner | None = None

    def why_not_ready(self) -> str | None:
        """None while this worker serves, else the reason why it does not."""
        if self._drain.started.is_set():
            return "draining"
        if not self._link.up or self._link.silent_s > SILENT_S:
            return "redis"
        if not self._pulse.up:
            return self._pulse.why_down
        return None if self._pulse.joined.is_set() else "joining"

    async def listen(self, address: Address) -> None:
        """Open the listener. Raises OSError where the address cannot be had."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._scrape)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, address.host, address.port).start()

    @property
    def port(self) -> int:
        """The port in use; for a listener that was given port 0."""
        assert self._runner is not None
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Close the listener, if it was opened."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        why_not = self.why_not_ready()
        if why_not is None:
            return web.Response(text="ready\n")
        return web.Response(status=503, text=f"not ready: {why_not}\n")

    async def _scrape(self, _: web.Request) -> web.Response:
        page = generate_latest(self._metrics.registry)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})
