"""Static files with entity tags, read once."""

import hashlib
from functools import cache

from starlette.requests import Request
from starlette.responses import Response

from control_room.pages.frame import HERE, PageRefused

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@cache
def _files() -> dict[str, tuple[bytes, str, str]]:
    """Return name → content, media type and entity tag."""
    found = {}
    for path in (HERE / "static").iterdir():
        if path.suffix in _TYPES:
            content = path.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            found[path.name] = (content, _TYPES[path.suffix], tag)
    return found


async def static_file(request: Request) -> Response:
    found = _files().get(request.path_params["name"])
    if found is None:
        raise PageRefused(404, "There is no such file", "")
    content, media_type, tag = found
    headers = {"etag": tag, "cache-control": "no-cache"}  # kept, and asked about each time
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=media_type, headers=headers)
