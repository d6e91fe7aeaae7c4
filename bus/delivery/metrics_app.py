"""The HTTP application of a process: metrics and health."""

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


def metrics_app() -> Starlette:
    """Return the web app with /metrics for Prometheus, also at /, and /healthz, which answers while the
    process lives.
    """
    return Starlette(
        routes=[Route("/metrics", _metrics), Route("/", _metrics), Route("/healthz", _alive)],
    )


async def _metrics(request: Request) -> Response:
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


async def _alive(request: Request) -> Response:
    return JSONResponse({"status": "alive"})
