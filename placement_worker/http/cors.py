"""Which pages of other origins may ask here. Without origins there is no such thing."""

from collections.abc import Sequence

from placement_worker.http.api_call import ApiCall

_METHODS = "GET, PUT, POST, DELETE"
_MAY_SEND = frozenset(
    ("accept", "accept-language", "cache-control", "content-language", "content-type", "if-none-match",
     "last-event-id", "openstack-api-version", "x-auth-token", "x-openstack-request-id")
)  # fmt: skip
_MAY_READ = "etag, location, openstack-api-version, x-openstack-request-id, berth-why, berth-candidates-cut"
_MAX_AGE = "3600"  # seconds a browser may remember the answer


class Cors:
    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origins)

    def asks_first(self, call: ApiCall) -> bool:
        """Let those read the answer who may; True: a browser only asks whether it may, and has its answer."""
        origin = call.headers.get("origin")
        if not self._origins or origin is None:
            return False
        method = call.headers.get("access-control-request-method")
        first = call.method == "OPTIONS" and method is not None
        if origin not in self._origins and "*" not in self._origins:
            return first
        call.shared = {"access-control-allow-origin": origin, "vary": "origin"}
        if not first:
            call.shared["access-control-expose-headers"] = _MAY_READ
            return False
        wanted = call.headers.get("access-control-request-headers", "")
        names = [name.strip() for name in wanted.split(",") if name.strip()]
        if all(name.lower() in _MAY_SEND for name in names):
            call.shared["access-control-allow-methods"] = _METHODS
            call.shared["access-control-max-age"] = _MAX_AGE
            if names:
                call.shared["access-control-allow-headers"] = ",".join(names)
        return True
