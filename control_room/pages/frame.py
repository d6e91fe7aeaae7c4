"""Common parts of all pages: the visitor, the navigation, the form token, and rendering."""

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Scope

from bus.clock import Clock
from control_room.access import RoomAccess, Sessions, WebSession
from control_room.background import Beside
from control_room.core import words
from control_room.events import Hearing
from control_room.looking import Looking
from control_room.operations import RoomMeans
from control_room.pages.cookies import theme_cookie
from control_room.queries import RoomQuestions

HERE = Path(__file__).parents[1]
NAVIGATION = (
    ("/", "Now"),
    ("/hosts", "Hosts"),
    ("/builds", "Builds"),
    ("/waiting", "Waiting room"),
    ("/moves", "Moves and drains"),
    ("/metal", "Bare metal"),
    ("/what-if", "What if"),
    ("/bus", "Bus"),
)
THEMES = ("auto", "light", "dark")


MOST_FIELDS = 300  # of a form: more than the dead letters of a page


class PageRefused(Exception):
    """A refusal that is shown in place of a page."""

    def __init__(self, status: int, title: str, says: str, *, retry_after: float = 0.0) -> None:
        super().__init__(says)
        self.status, self.title, self.says = status, title, says
        self.headers = {"retry-after": str(ceil(retry_after))} if retry_after else {}


@dataclass(frozen=True, kw_only=True)
class OpenRoom:
    """All that pages work with."""

    questions: RoomQuestions
    hearing: Hearing
    looking: Looking
    access: RoomAccess
    sessions: Sessions
    clock: Clock
    means: RoomMeans
    beside: Beside


class Frame:
    """Renders pages and parts of them."""

    def __init__(self, room: OpenRoom) -> None:
        self.room = room
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals.update(
            duration=words.duration,
            count=words.count,
            several=words.several,
            rate=words.rate,
            listed=words.listed,
            navigation=NAVIGATION,
            themes=THEMES,
        )

    def part(self, template: str, **shown: Any) -> str:
        made: str = self._templates.get_template(template).render(shown)
        return made

    def page(self, request: Request, template: str, *, status: int = 200, **shown: Any) -> Response:
        return HTMLResponse(
            self.part(
                template,
                **self.of_visitor(request),
                theme=theme_of(request),
                here=request.url.path,
                **shown,
            ),
            status_code=status,
        )

    def of_visitor(self, request: Request) -> dict[str, Any]:
        """Return the values about the visitor for parts with forms."""
        session = session_of(request)
        return {
            "visitor": session.visitor,
            "may_act": self.room.access.may_act(session.visitor),
            "form_token": self.room.sessions.form_token(session),
        }

    async def form(self, request: Request) -> dict[str, str]:
        """Return the fields of a form of this session; its visitor may act."""
        fields = await self.open_form(request)
        if not self.room.access.may_act(session_of(request).visitor):
            raise PageRefused(
                403, "You may only look", "To change something, sign in with a token whose role may."
            )
        return fields

    async def open_form(self, request: Request) -> dict[str, str]:
        """Return the fields of a form of this session, whether its visitor may act or not."""
        body = (await request.body()).decode("utf-8", "replace")
        try:
            fields = dict(parse_qsl(body, keep_blank_values=True, max_num_fields=MOST_FIELDS))
        except ValueError:
            raise PageRefused(413, "Not done", f"A form has at most {MOST_FIELDS} fields.") from None
        if not self.room.sessions.is_form_token(session_of(request), fields.pop("form_token", "")):
            raise PageRefused(
                403,
                "Not done",
                "This form is not of your session, or too old: load the page again and repeat it.",
            )
        return fields


def session_of(request: Request) -> WebSession:
    session: WebSession = request.scope["session"]
    return session


def address_of(scope: Scope) -> str:
    """Return the address of the client; empty if the server does not know it."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def who(request: Request) -> str:
    """Return the user name for the log."""
    visitor = session_of(request).visitor
    return visitor.user if visitor else "?"


def theme_of(request: Request) -> str:
    theme = request.cookies.get(theme_cookie(request.scope), "")
    return theme if theme in THEMES else "auto"


def back_to(path: str) -> Response:
    """Only to a page of our own."""
    safe = path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"
    return RedirectResponse(safe, status_code=303)
