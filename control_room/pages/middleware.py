"""Checks every request to the pages: sign-in, limits, session, authorisation; and sets response headers."""

import ipaddress
import logging
import re
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bus.delivery.recording import caller
from bus.errors import OperationRefused, Unavailable
from bus.http import origin_of
from control_room.access import WebSession, from_our_page, session_cookie, set_session, set_theme
from control_room.kit.access import Credential, Visitor
from control_room.kit.frame import PageContext, PageGroup, PageRefused, Renderer
from control_room.kit.page_requests import THEMES, caller_of, redirect_to, session_of

# Limits of requests in progress. Some of the connections (berth/control_room_setup.py) stay free for
# /healthz, and no address or user can occupy most of them.
OF_A_SESSION = 30
OF_A_USER = 100
OF_AN_ADDRESS = 150
IN_ALL = 400
_RETRY = 5  # seconds until a client that exceeded a limit should try again

FREE_FAILURES = 5  # sign-ins that may fail before the first pause
LONGEST_PAUSE = 300.0
EXPIRY = 1800.0  # seconds without a failure until the failures of an address are forgotten
_ADDRESSES = 10_000


class RunningRequests:
    """Counts and limits the requests that are being answered, by session, user and IP address."""

    def __init__(self) -> None:
        self._counts: Counter[Hashable] = Counter()

    @contextmanager
    def count(self, session: str, user: Hashable, address: str) -> Iterator[None]:
        """Count an HTTP request as running while the block runs; raise PageRefused if too many run."""
        limits: Mapping[Hashable, tuple[int, str]] = {
            ("session", session): (OF_A_SESSION, "this session"),
            ("user", user): (OF_A_USER if user else IN_ALL, "this user"),
            ("address", network_of(address)): (OF_AN_ADDRESS, "this address"),
            "all": (IN_ALL, "all clients"),
        }
        for key, (most, client) in limits.items():
            if self._counts[key] >= most:
                text = f"{most} requests of {client} are being answered already, the most at a time."
                raise PageRefused(429, "Too many requests", text, retry_after=_RETRY)
        self._counts.update(limits.keys())
        try:
            yield
        finally:
            for key in limits:
                self._counts[key] -= 1
                if not self._counts[key]:
                    del self._counts[key]


class SignInFailures:
    """Counts failed sign-ins by address. After a few, each failure doubles the pause until the next attempt.

    A successful sign-in resets nothing, or one token would permit guessing further tokens without a pause.
    """

    def __init__(self) -> None:
        # address → number of failures, time of the last failure
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def pause(self, address: str, now: float) -> float:
        """Return after how many seconds this IP address may try to sign in again; 0: now."""
        count, last = self._failures.get(network_of(address), (0, 0.0))
        if count < FREE_FAILURES:
            return 0.0
        pause = min(LONGEST_PAUSE, 2.0 ** min(count - FREE_FAILURES, 20))
        return max(0.0, last + pause - now)

    def failed(self, address: str, now: float) -> int:
        """Count a failed sign-in of an IP address; return the number of its failures, this one included."""
        key = network_of(address)
        count, last = self._failures.pop(key, (0, now))
        count = count + 1 if now - last < EXPIRY else 1
        self._failures[key] = count, now
        while len(self._failures) > _ADDRESSES:
            self._failures.popitem(last=False)
        return count


def network_of(address: str) -> str:
    """Return an IPv4 address unchanged, and the /64 network of an IPv6 address, which one client owns."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    return str(ipaddress.ip_network((found, 64), strict=False))


log = logging.getLogger(__name__)

HEALTH = "/healthz"
SSO = "/login/sso"  # to which Keystone's page posts a token
SSO_START, SSO_PROJECT = f"{SSO}/start", f"{SSO}/project"
# paths, in addition to /static/, that are open without sign-in
OPEN = ("/login", SSO, SSO_START, SSO_PROJECT, "/logout", "/theme", HEALTH)
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


class AccessMiddleware:
    """Gives each request its session; redirects visitors who are not signed in; adds security headers."""

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
            with self._running.count(session.id, session.visitor, origin_of(scope)):
                self._authorise(scope, headers, session)
                caller.set(caller_of(scope, session.visitor))
                await self._app(scope, receive, send_with_headers)
        except PageRefused as refused:
            if refused.status == 403 and scope["method"] == "POST" and session.visitor is not None:
                who = caller_of(scope, session.visitor)
                await self._context.operations.note(who, "form", scope["path"], "denied", refused.title)
            await self._refused(scope, refused)(scope, receive, send_with_headers)
        except OperationRefused as refused:  # the user's role forbids an operation of this page
            problem = PageRefused(403, "Not done", f"{refused}.")
            await self._refused(scope, problem)(scope, receive, send_with_headers)
        except Exception:
            log.exception("%s %.200r failed", scope["method"], scope["path"])
            if started:
                raise
            text = "The page could not be made. What happened is in the log."
            bug = PageRefused(500, "An internal error occurred", text)
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
            text = "Use the address itself or localhost, or add the name to control_room_names."
            raise PageRefused(421, "Not by this name", text)
        if scope["method"] == "POST":
            if not self._is_from_expected_page(scope["path"], headers):
                # Do not replace the session: browsers omit its cookie from forms of other sites.
                scope["session.new"] = False
                raise PageRefused(403, "Not done", "The form came from another site.")
            length = headers.get("content-length", "")
            if not LENGTH.fullmatch(length) or int(length) > LARGEST_FORM:
                text = f"A form has at most {LARGEST_FORM} bytes, and a Content-Length."
                raise PageRefused(413, "Not done", text)
        path = scope["path"]
        if path in OPEN or path.startswith("/static/"):
            return
        if not self._context.access.may_read(session.visitor):
            raise PageRefused(401 if session.visitor is None else 403, "Sign in", "")

    def _is_from_expected_page(self, path: str, headers: Headers) -> bool:
        single_sign_on = self._context.access.single_sign_on
        if path == SSO and single_sign_on is not None:
            return headers.get("origin") == single_sign_on.origin
        return from_our_page(headers)

    def _is_allowed_name(self, host: str) -> bool:
        """Return whether the name in a Host header is allowed: this prevents DNS rebinding by other sites."""
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
        if refused.title == "Sign in":
            if scope["method"] == "GET" and refused.status == 401:
                return redirect_to("/login")
            refused = PageRefused(403, "Not for you", "Your token's role may not read this.")
        answer = self._renderer.page(
            request, "refused.html", status=refused.status, title=refused.title, text=refused.text
        )
        answer.headers.update(refused.headers)
        return answer

    def _add_headers(self, scope: Scope, headers: MutableHeaders) -> None:
        for name, value in _HEADERS.items():
            headers[name] = value
        static = scope["path"].startswith("/static/")
        # browsers keep static files, and ask each time whether they have changed
        headers.setdefault("cache-control", "no-cache" if static else "no-store")
        if scope["session.new"] and scope["path"] != HEALTH and not static:
            answer = Response()
            set_session(answer, scope, scope["session"])
            headers.append("set-cookie", answer.headers["set-cookie"])


_UNKNOWN = {
    "name": "Give a name of printable characters.",
    "token": "This token is not known here.",
    "keystone": "Keystone does not accept this user, password and project.",
}


class SignInPages(PageGroup):
    """Signs users in and out, and sets the theme."""

    def __init__(self, context: PageContext, renderer: Renderer) -> None:
        super().__init__(context, renderer)
        self._failures = SignInFailures()

    async def page(self, request: Request, problem: str = "", status: int = 200) -> Response:
        access = self._context.access
        shown = {
            "problem": problem, "form": access.form,
            "single_sign_on": access.single_sign_on is not None,
            "is_secure": request.url.scheme == "https",
        }  # fmt: skip
        return self._renderer.page(request, "login.html", status=status, **shown)

    async def sign_in(self, request: Request) -> Response:
        """Check the given credential and begin a session; a failed check delays the next one."""
        fields = await self._renderer.open_form(request)
        self.check_pause(request)
        access = self._context.access
        try:
            credential = await access.sign_in(fields)
        except Unavailable as problem:
            return await self.page(request, str(problem), 503)
        visitor = credential()
        if visitor is None:
            return await self.refuse(request, _UNKNOWN[access.form])
        return await self.admit(request, visitor, credential, redirect_to("/"))

    def check_pause(self, request: Request) -> None:
        """Raise PageRefused if the sender's IP address must wait after failed sign-ins."""
        pause = self._failures.pause(origin_of(request.scope), self._context.clock.monotonic())
        if pause > 0:
            text = f"Too many sign-ins of this address have failed. Try again in {pause:.0f} s."
            raise PageRefused(429, "Too many attempts", text, retry_after=pause)

    async def refuse(self, request: Request, problem: str) -> Response:
        """Count a failed sign-in; return the sign-in page (status 401) that shows the text `problem`."""
        address = origin_of(request.scope)
        failures = self._failures.failed(address, self._context.clock.monotonic())
        log.warning("sign-in refused: unknown user or token, from %s, failure %d", address, failures)
        unknown = caller_of(request.scope, None)
        await self._context.operations.note(unknown, "sign in", "control room", "denied", problem)
        return await self.page(request, problem, 401)

    async def admit(
        self, request: Request, visitor: Visitor, credential: Credential, answer: Response
    ) -> Response:
        """Begin a session for a user that signed in; return the response `answer` with its session cookie."""
        context = self._context
        context.sessions.end(session_of(request).id)
        session = context.sessions.sign_in(visitor, credential, context.clock.now())
        log.info("%s signed in from %s", visitor.user, origin_of(request.scope))
        set_session(answer, request.scope, session)
        signed_in = caller_of(request.scope, visitor)
        await context.operations.note(signed_in, "sign in", "control room", "done", "")
        return answer

    async def sign_out(self, request: Request) -> Response:
        await self._renderer.open_form(request)
        session = session_of(request)
        if session.visitor is not None:
            log.info("%s signed out", session.visitor.user)
        self._context.sessions.end(session.id)
        answer = redirect_to("/")
        set_session(answer, request.scope, self._context.sessions.new())
        return answer

    async def theme(self, request: Request) -> Response:
        fields = await self._renderer.open_form(request)
        answer = redirect_to(fields.get("back", "/"))
        theme = fields.get("theme", "")
        if theme in THEMES:
            set_theme(answer, request.scope, theme)
        return answer
