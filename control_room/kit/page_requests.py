"""Reads the session, the user and the parameters of a request for a page."""

import uuid

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Scope

from bus.audit_trail import Operator
from bus.clock import Clock
from bus.delivery.recording import Caller
from bus.http import origin_of
from control_room.access import WebSession, theme_cookie
from control_room.kit.access import Visitor

THEMES = ("auto", "light", "dark")


def session_of(request: Request) -> WebSession:
    """Return the session of the request's visitor."""
    session: WebSession = request.scope["session"]
    return session


def caller_of(scope: Scope, visitor: Visitor | None) -> Caller:
    """Return the user, address and path of an HTTP request for a record in the audit trail."""
    return Caller(
        operator=visitor.operator if visitor else Operator(name=""),
        interface="control room",
        through=f"{scope['method']} {scope['path']}",
        origin=origin_of(scope),
        request=Clock().uuid(),
    )


def user_of(request: Request) -> str:
    """Return the name of the user that sent an HTTP request, for the log; "?" without sign-in."""
    visitor = session_of(request).visitor
    return visitor.user if visitor else "?"


def theme_of(request: Request) -> str:
    """Return the theme of the visitor's cookie, or "auto"."""
    theme = request.cookies.get(theme_cookie(request.scope), "")
    return theme if theme in THEMES else "auto"


def redirect_to(path: str) -> Response:
    """Return a redirect to a path of this site, or to the home page if the path leads to another site."""
    safe = path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"
    return RedirectResponse(safe, status_code=303)


def parameter(request: Request, name: str) -> str:
    """Return a query parameter of the address without surrounding blanks, at most 255 characters; "" if it is
    missing.
    """
    return request.query_params.get(name, "").strip()[:255]


def uuid_in(text: str) -> str:
    """Return the text as a UUID in lower case with dashes, or an empty text if it is no UUID."""
    try:
        return str(uuid.UUID(text.strip()))
    except ValueError:
        return ""
