"""`/metrics` for Prometheus, `/load` for the page, and the page itself at `/`."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import HTMLResponse, Response

from paceline.server.service import VERSION, Service

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
_POLICY += "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'"


def routes(service: Service) -> APIRouter:
    """The routes."""
    router = APIRouter(tags=["Server"])
    page = (files("paceline.server") / "page.html").read_text(encoding="utf-8")

    @router.get("/metrics", response_model=None)
    async def metrics() -> Response:
        """Figures for Prometheus."""
        text = service.metrics.text(service.engine.load, service.engine.memory)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    @router.get("/load")
    async def load() -> dict[str, Any]:
        """What is decoded now, and how drafting goes. No text is in it."""
        now = service.engine.load
        return {
            "model": service.settings.name,
            "version": VERSION,
            "server_load": service.engine.num_open,
            "num_running": now.num_running,
            "num_waiting": now.num_waiting,
            "max_running": service.engine.max_sequences,
            "max_waiting": service.engine.max_waiting,
            **service.metrics.load(),
        }

    @router.get("/", include_in_schema=False, response_model=None)
    async def look() -> Response:
        """The page that shows it."""
        return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY})

    return router
