"""Who looks, and what he may: sessions in a signed cookie, and tokens that forms must bring back."""

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

HOURS = 12.0  # a session lasts


class Visitor(msgspec.Struct, frozen=True):
    """Somebody who has shown a token."""

    user: str
    project: str
    roles: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class RoomAccess:
    """Whom the room believes, and what it lets him do: the tokens and the policy of the Placement API."""

    authenticate: Callable[[str], Visitor | None]
    may_look: Callable[[Visitor | None], bool]
    may_act: Callable[[Visitor | None], bool]
    names: frozenset[str] = frozenset()  # by which it may be called, beside addresses and localhost


class Visit(msgspec.Struct, frozen=True):
    """What the cookie says. Who has shown no token has one too: his forms are his alone."""

    id: str
    until: float
    visitor: Visitor | None = None


class Sessions:
    """Signed with a key that lives as long as the process: nothing is stored, a restart ends them all."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)

    def begin(self, now: float, visitor: Visitor | None = None) -> Visit:
        """Another id at each login: what was known of the one before is worth nothing."""
        return Visit(secrets.token_urlsafe(18), now + HOURS * 3600, visitor)

    def cookie(self, session: Visit) -> str:
        said = urlsafe_b64encode(msgspec.json.encode(session)).decode()
        return f"{said}.{self._mark('session', said)}"

    def read(self, cookie: str, now: float) -> Visit | None:
        said, _, mark = cookie.rpartition(".")
        if not said or not hmac.compare_digest(mark.encode(), self._mark("session", said).encode()):
            return None
        try:
            session = msgspec.json.decode(urlsafe_b64decode(said), type=Visit)
        except (msgspec.DecodeError, NotBase64, ValueError):
            return None
        return session if session.until > now else None

    def form_token(self, session: Visit) -> str:
        """What each form of this session brings back."""
        return self._mark("form", session.id)

    def is_ours(self, session: Visit, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.form_token(session).encode())

    def _mark(self, what: str, said: str) -> str:
        return hmac.new(self._key, f"{what}:{said}".encode(), hashlib.sha256).hexdigest()


def from_our_page(headers: Mapping[str, str]) -> bool:
    """Browsers say where a form comes from; one that says nothing is judged by the form's token alone."""
    site = headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host", "")
