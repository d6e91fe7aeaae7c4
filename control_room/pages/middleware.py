"""Middleware of every request: limits, host name, session, authorisation, headers, and refusals as pages."""

import ipaddress
import logging
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control_room.access import WebSession, from_our_page, session_cookie, set_session
from control_room.limits import RunningRequests, TooManyRequests
from control_room.pages.frame import PageContext, PageRefused, Renderer, address_of, redirect_to

log = logging.getLogger(__name__)

HEALTH = "/healthz"
OPEN = ("/login", "/logout", "/theme", HEALTH)  # and /static/: needed to sign in
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
LENGTH = re.compile(r"[0-9]{1,9}")
_RETRY = 5  # seconds


class AccessMiddleware:
    def __init__(self, app: ASGIApp, context: PageContext, renderer: Renderer) -> None:
        self._app = app
        self._context = context
        self._renderer = renderer
        self._running = RunningRequests()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        session = self._session(scope)
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self._add_headers(scope, MutableHeaders(scope=message))
            await send(message)

        try:
            if scope["path"] == HEALTH:
                await self._app(scope, receive, send_with_headers)
                return
            with self._running.count(session.id, session.visitor, address_of(scope)):
                self._authorise(scope, headers, session)
                await self._app(scope, receive, send_with_headers)
        except TooManyRequests as too_many:
            refused = PageRefused(429, "Too many requests", f"{too_many}.", retry_after=_RETRY)
            await self._refused(scope, refused)(scope, receive, send_with_headers)
        except PageRefused as refused:
            await self._refused(scope, refused)(scope, receive, send_with_headers)
        except Exception:
            log.exception("%s %.200r failed", scope["method"], scope["path"])
            if started:
                raise
            bug = PageRefused(
                500, "That is a bug", "The page could not be made. What happened is in the log."
            )
            await self._refused(scope, bug)(scope, receive, send_with_headers)

    def _session(self, scope: Scope) -> WebSession:
        sessions = self._context.sessions
        cookie = HTTPConnection(scope).cookies.get(session_cookie(scope), "")
        found = sessions.find(cookie, self._context.clock.now())
        session = found or sessions.new()
        scope["session"], scope["session.new"] = session, found is None
        return session

    def _authorise(self, scope: Scope, headers: Headers, session: WebSession) -> None:
        if not self._is_allowed_name(headers.get("host", "")):
            raise PageRefused(
                421,
                "Not by this name",
                "Come by the address itself or localhost, or tell control_room_names.",
            )
        if scope["method"] == "POST":
            if not from_our_page(headers):
                raise PageRefused(403, "Not done", "The form came from another site.")
            length = headers.get("content-length", "")
            if not LENGTH.fullmatch(length) or int(length) > LARGEST_FORM:
                raise PageRefused(
                    413, "Not done", f"A form has at most {LARGEST_FORM} bytes, and a Content-Length."
                )
        path = scope["path"]
        if path in OPEN or path.startswith("/static/"):
            return
        if not self._context.access.may_read(session.visitor):
            raise PageRefused(401 if session.visitor is None else 403, "Sign in", "")

    def _is_allowed_name(self, host: str) -> bool:
        """Return whether requests may use this host name.

        With any name allowed, a page of another site could read the pages once its name resolves to this
        address.
        """
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if name in ("localhost", *self._context.access.names):
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
            text = f"{refused.title}. {refused.text}\n"
            return PlainTextResponse(text, refused.status, headers=refused.headers)
        if refused.title == "Sign in" and scope["method"] == "GET" and refused.status == 401:
            return redirect_to("/login")
        if refused.title == "Sign in":
            refused = PageRefused(403, "Not for you", "Your token's role may not read this.")
        answer = self._renderer.page(
            request, "refused.html", status=refused.status, title=refused.title, text=refused.text
        )
        answer.headers.update(refused.headers)
        return answer

    def _add_headers(self, scope: Scope, headers: MutableHeaders) -> None:
        for name, value in _HEADERS.items():
            headers[name] = value
        headers.setdefault("cache-control", "no-store")
        if scope["session.new"] and scope["path"] != HEALTH and not scope["path"].startswith("/static/"):
            answer = Response()
            set_session(answer, scope, scope["session"])
            headers.append("set-cookie", answer.headers["set-cookie"])
