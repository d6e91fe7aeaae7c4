"""Sessions of the control room's users: sign-in, expiry, revocation, and the secret tokens in forms."""

import asyncio
import hashlib
import hmac
import re
import secrets
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from bus.clock import Clock
from control_room.kit.access import Credential, Visitor

SECONDS = 12 * 3600.0  # until a session expires


OF_A_USER = 40  # sessions of one user; a further session ends the oldest


IN_ALL = 2000


SWEEP = 1.0  # seconds between two checks for sessions that have ended


_ID = re.compile(r"[\w-]{32}", re.ASCII)


@dataclass(eq=False)
class EventStream:
    """An open connection on which the server sends events (server-sent events) to one browser."""

    ended: asyncio.Event = field(default_factory=asyncio.Event)
    wake: asyncio.Event = field(default_factory=asyncio.Event)  # set by a change, and when the stream ends
    timeout: asyncio.Timeout | None = None

    def end(self) -> None:
        """End the stream now; the browser opens another one if its session is valid."""
        self.ended.set()
        self.wake.set()
        if self.timeout is not None:
            self.timeout.reschedule(0.0)

    @contextmanager
    def endable(self, timeout: asyncio.Timeout) -> Iterator[None]:
        """Let EventStream.end() cancel the `with` block: it makes `timeout`, around the block, expire."""
        self.timeout = timeout
        try:
            yield
        finally:
            self.timeout = None


@dataclass(frozen=True)
class WebSession:
    """A browser's session. Before sign-in (`visitor` is None) the control room does not store it."""

    id: str
    visitor: Visitor | None = None


@dataclass(frozen=True)
class _SignedIn:
    session: WebSession
    until: float
    credential: Credential

    def is_valid(self, now: float) -> bool:
        return now < self.until and self.credential() == self.session.visitor


class Sessions:
    """The sessions of users signed in to the control room, by id; a restart of the process ends them."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._signed_in: dict[str, _SignedIn] = {}  # by session id, the oldest first
        self._streams: defaultdict[str, set[EventStream]] = defaultdict(set)
        self._closed = False

    def find(self, cookie: str, now: float) -> WebSession | None:
        """Return the session with the id in a cookie, without a user if the id is unknown; None if the id is
        malformed or the user's session is no longer valid.
        """
        if not _ID.fullmatch(cookie):
            return None
        known = self._signed_in.get(cookie)
        if known is not None and not known.is_valid(now):
            self.end(cookie)
            return None
        return known.session if known else WebSession(cookie)

    def new(self) -> WebSession:
        """Return a session without a visitor."""
        return WebSession(secrets.token_urlsafe(24))

    def sign_in(self, visitor: Visitor, credential: Credential, now: float) -> WebSession:
        """Return a new session for a signed-in user, with a new id, because an attacker may have set the old
        one. End the oldest sessions above the limit for one user, and above the limit for all users.
        """
        session = WebSession(self.new().id, visitor)
        of_user = [id_ for id_, known in self._signed_in.items() if known.session.visitor == visitor]
        for id_ in (*of_user[: max(0, len(of_user) + 1 - OF_A_USER)], *list(self._signed_in)[: 1 - IN_ALL]):
            self.end(id_)
        self._signed_in[session.id] = _SignedIn(session, now + SECONDS, credential)
        return session

    def end(self, id_: str) -> None:
        """End a signed-in user's session, and close the event streams that it has open."""
        if self._signed_in.pop(id_, None) is not None:
            for stream in self._streams.get(id_, ()):
                stream.end()

    def end_invalid(self, now: float) -> None:
        """End expired sessions, and sessions of users whose token was removed or has other roles now."""
        for id_ in [id_ for id_, known in self._signed_in.items() if not known.is_valid(now)]:
            self.end(id_)

    def form_token(self, session: WebSession) -> str:
        """Return the secret that every form of a session contains, so that no other site can forge a form."""
        return hmac.new(self._key, session.id.encode(), hashlib.sha256).hexdigest()

    def is_form_token(self, session: WebSession, given: str) -> bool:
        """Return whether a form carries the token of this session, and so comes from a page
        that it received.
        """
        return hmac.compare_digest(given.encode(), self.form_token(session).encode())

    @contextmanager
    def stream(self, session: WebSession) -> Iterator[EventStream]:
        """Yield a stream of events that ends with the session."""
        stream = EventStream()
        if self._closed or (session.visitor is not None and session.id not in self._signed_in):
            stream.end()
        self._streams[session.id].add(stream)
        try:
            yield stream
        finally:
            self._streams[session.id].discard(stream)
            if not self._streams[session.id]:
                del self._streams[session.id]

    def has_ended(self, session: WebSession) -> bool:
        """Return whether the session was signed in and is no longer valid."""
        return session.visitor is not None and session.id not in self._signed_in

    def close(self) -> None:
        """End all event streams when the server stops, because they would never end by themselves."""
        self._closed = True
        for streams in self._streams.values():
            for stream in streams:
                stream.end()


async def sweep(sessions: Sessions, clock: Clock) -> None:
    """Every second, end sessions that expired or have an invalid token, with their open event streams."""
    while True:
        sessions.end_invalid(clock.now())
        await asyncio.sleep(SWEEP)


def from_our_page(headers: Mapping[str, str]) -> bool:
    """Return False if the browser's headers show that a form was sent from a page of another site."""
    site = headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host", "")


_A_YEAR = 365 * 86400


def session_cookie(scope: Scope) -> str:
    """Return the name of the session cookie.

    Browsers send a cookie to every port of a host: the port in its name separates several control rooms. Over
    TLS the name begins with `__Host-`, so neither a sibling domain nor plain HTTP can plant a cookie.
    """
    is_tls = scope["scheme"] == "https"
    port = Headers(scope=scope).get("host", "").rpartition(":")[2]
    if not (port.isascii() and port.isdigit() and len(port) <= 5):
        port = "443" if is_tls else "80"
    return f"{'__Host-' if is_tls else ''}berth_{port}"


def theme_cookie(scope: Scope) -> str:
    return f"{session_cookie(scope)}_theme"


def set_session(answer: Response, scope: Scope, session: WebSession) -> None:
    """Set the cookie of a new session in an answer."""
    scope["session"], scope["session.new"] = session, False
    _set(answer, scope, session_cookie(scope), session.id, int(SECONDS))


def set_theme(answer: Response, scope: Scope, theme: str) -> None:
    _set(answer, scope, theme_cookie(scope), theme, _A_YEAR)


def _set(answer: Response, scope: Scope, name: str, value: str, seconds: int) -> None:
    secure = scope["scheme"] == "https"
    answer.set_cookie(name, value, max_age=seconds, path="/", httponly=True, samesite="strict", secure=secure)
