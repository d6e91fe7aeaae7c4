"""What every request goes through: the name it came by, its session, who may see what, and headers."""

import ipaddress
import logging
from http.cookies import SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control_room.access import HOURS, Visit, from_our_page
from control_room.pages.frame import Frame, OpenRoom, PageRefused, back_to

log = logging.getLogger(__name__)

OPEN = ("/login", "/logout", "/theme", "/healthz")  # and /static/: what is needed to come in
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
LARGEST_FORM = 64 << 10


class Entry:
    def __init__(self, app: ASGIApp, room: OpenRoom, frame: Frame) -> None:
        self._app = app
        self._room = room
        self._frame = frame

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        session = self._session(scope, headers)
        begun = False

        async def told(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self._add_headers(scope, MutableHeaders(scope=message))
            await send(message)

        try:
            self._let_in(scope, headers, session)
            await self._app(scope, receive, told)
        except PageRefused as refused:
            await self._refused(scope, refused)(scope, receive, told)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if begun:
                raise
            bug = PageRefused(
                500, "That is a bug", "The page could not be made. What happened is in the log."
            )
            await self._refused(scope, bug)(scope, receive, told)

    def _session(self, scope: Scope, headers: Headers) -> Visit:
        now = self._room.clock.now()
        cookies = SimpleCookie(headers.get("cookie", ""))
        given = cookies.get(cookie_name(scope))
        session = self._room.sessions.read(given.value, now) if given else None
        scope["session.new"] = session is None
        scope["session"] = session or self._room.sessions.begin(now)
        return scope["session"]  # type: ignore[no-any-return]

    def _let_in(self, scope: Scope, headers: Headers, session: Visit) -> None:
        if not self._is_our_name(headers.get("host", "")):
            raise PageRefused(
                421,
                "Not by this name",
                "Come by the address itself or localhost, or tell control_room_names.",
            )
        if scope["method"] not in ("GET", "HEAD"):
            if not from_our_page(headers):
                raise PageRefused(403, "Not done", "The form came from another site.")
            length = headers.get("content-length", "")
            if not length.isdigit() or int(length) > LARGEST_FORM:
                raise PageRefused(
                    413, "Not done", f"A form may have {LARGEST_FORM} bytes, and says how many."
                )
        path = scope["path"]
        if path in OPEN or path.startswith("/static/"):
            return
        if not self._room.access.may_look(session.visitor):
            raise PageRefused(401 if session.visitor is None else 403, "Sign in", "")

    def _is_our_name(self, host: str) -> bool:
        """A page elsewhere that calls itself by a name of its own must not read what is here."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if name in ("localhost", *self._room.access.names):
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

    def _refused(self, scope: Scope, refused: PageRefused) -> ASGIApp:
        request = Request(scope)
        page = "text/html" in request.headers.get("accept", "")
        if not page:
            return PlainTextResponse(f"{refused.title}. {refused.says}\n", refused.status)
        if refused.title == "Sign in" and scope["method"] == "GET" and refused.status == 401:
            return back_to("/login")
        if refused.title == "Sign in":
            refused = PageRefused(403, "Not for you", "Your token's role may not look at this.")
        return self._frame.page(
            request, "refused.html", status=refused.status, title=refused.title, says=refused.says
        )

    def _add_headers(self, scope: Scope, headers: MutableHeaders) -> None:
        for name, value in _HEADERS.items():
            headers[name] = value
        headers.setdefault("cache-control", "no-store")
        if scope["session.new"] and not scope["path"].startswith("/static/"):
            answer = Response()
            set_session(answer, scope, self._room, scope["session"])
            headers.append("set-cookie", answer.headers["set-cookie"])


def set_session(answer: Response, scope: Scope, room: OpenRoom, session: Visit) -> None:
    scope["session"], scope["session.new"] = session, False
    answer.set_cookie(
        cookie_name(scope),
        room.sessions.cookie(session),
        max_age=int(HOURS * 3600),
        httponly=True,
        samesite="strict",
        secure=scope["scheme"] == "https",
    )


def cookie_name(scope: Scope) -> str:
    """Cookies do not tell ports apart, and one machine may have several berths."""
    _, port = scope.get("server") or ("", 0)
    return f"berth_{port or 0}"
