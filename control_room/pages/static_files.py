"""The few files that browsers keep: read once, named by what is in them."""

import hashlib
from functools import cache

from starlette.requests import Request
from starlette.responses import Response

from control_room.pages.frame import HERE, PageRefused

_KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@cache
def _files() -> dict[str, tuple[bytes, str, str]]:
    """Name → what is in it, its kind, its mark."""
    found = {}
    for path in (HERE / "static").iterdir():
        if path.suffix in _KINDS:
            content = path.read_bytes()
            found[path.name] = (content, _KINDS[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:16]}"')
    return found


async def static_file(request: Request) -> Response:
    found = _files().get(request.path_params["name"])
    if found is None:
        raise PageRefused(404, "There is no such file", "")
    content, kind, mark = found
    headers = {"etag": mark, "cache-control": "no-cache"}  # kept, and asked about each time
    if request.headers.get("if-none-match") == mark:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)
