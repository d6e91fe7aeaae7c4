"""The cookies of the control room: their names, and how they are set."""

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from control_room.access import SECONDS, WebSession

_A_YEAR = 365 * 86400


def session_cookie(scope: Scope) -> str:
    """Return the name of the session cookie.

    Browsers send a cookie to every port of its host. With the port in its name, several control rooms on one
    host do not overwrite each other's. It is the port that the browser uses, also behind a proxy.
    Over TLS the name begins with `__Host-`: browsers accept such a cookie only from this host itself and over
    TLS, so neither a sibling domain nor plain HTTP can plant one. Without TLS they refuse the prefix.
    """
    is_tls = scope["scheme"] == "https"
    port = Headers(scope=scope).get("host", "").rpartition(":")[2]
    if not (port.isascii() and port.isdigit() and len(port) <= 5):
        port = "443" if is_tls else "80"
    return f"{'__Host-' if is_tls else ''}berth_{port}"


def theme_cookie(scope: Scope) -> str:
    return f"{session_cookie(scope)}_theme"


def set_session(answer: Response, scope: Scope, session: WebSession) -> None:
    """Send this session with the answer, in place of the request's."""
    scope["session"], scope["session.new"] = session, False
    _set(answer, scope, session_cookie(scope), session.id, int(SECONDS))


def set_theme(answer: Response, scope: Scope, theme: str) -> None:
    _set(answer, scope, theme_cookie(scope), theme, _A_YEAR)


def _set(answer: Response, scope: Scope, name: str, value: str, seconds: int) -> None:
    answer.set_cookie(
        name,
        value,
        max_age=seconds,
        path="/",
        httponly=True,
        samesite="strict",
        secure=scope["scheme"] == "https",
    )
