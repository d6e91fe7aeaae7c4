"""What every page has: the visitor, the way around, the form token; and how it is rendered."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from bus.clock import Clock
from control_room.access import RoomAccess, Sessions, Visit
from control_room.acting import RoomMeans
from control_room.asking import RoomQuestions
from control_room.beside import Beside
from control_room.core import words
from control_room.hearing import Hearing
from control_room.looking import Looking

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


class PageRefused(Exception):
    """What is told instead of a page."""

    def __init__(self, status: int, title: str, says: str) -> None:
        super().__init__(says)
        self.status, self.title, self.says = status, title, says


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
                theme=theme_of(request.cookies),
                here=request.url.path,
                **shown,
            ),
            status_code=status,
        )

    def of_visitor(self, request: Request) -> dict[str, Any]:
        """What parts with forms need to know of who looks."""
        session = session_of(request)
        return {
            "visitor": session.visitor,
            "may_act": self.room.access.may_act(session.visitor),
            "form_token": self.room.sessions.form_token(session),
        }

    async def form(self, request: Request) -> dict[str, str]:
        """The fields of a form that came from a page of this session, of somebody who may act."""
        fields = await self.open_form(request)
        if not self.room.access.may_act(session_of(request).visitor):
            raise PageRefused(
                403, "You may only look", "To change something, sign in with a token whose role may."
            )
        return fields

    async def open_form(self, request: Request) -> dict[str, str]:
        """The same, whoever sends it."""
        said = (await request.body()).decode("utf-8", "replace")
        fields = dict(parse_qsl(said, keep_blank_values=True, max_num_fields=200))
        if not self.room.sessions.is_ours(session_of(request), fields.pop("form_token", "")):
            raise PageRefused(
                403,
                "Not done",
                "This form is not of your session, or too old: load the page again and repeat it.",
            )
        return fields


def session_of(request: Request) -> Visit:
    session: Visit = request.scope["session"]
    return session


def who(request: Request) -> str:
    """Who asks, as it is noted of what was done."""
    visitor = session_of(request).visitor
    return visitor.user if visitor else "?"


def theme_of(cookies: Mapping[str, str]) -> str:
    theme = cookies.get("berth_theme", "")
    return theme if theme in THEMES else "auto"


def back_to(path: str) -> Response:
    """Only to a page of our own."""
    safe = path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"
    return RedirectResponse(safe, status_code=303)
