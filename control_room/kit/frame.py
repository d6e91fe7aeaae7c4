"""The frame of all pages: navigation, templates, and what features add."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, Protocol, get_args
from urllib.parse import parse_qsl

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from bus.clock import Clock, moment_text, time_text
from bus.feature import NavigationGroup, PageEntry
from bus.masking import printable
from control_room.access import Sessions
from control_room.kit import words
from control_room.kit.access import AccessRules
from control_room.kit.forms import RequestField
from control_room.kit.page_requests import THEMES, session_of, theme_of
from control_room.kit.queries import Queries
from control_room.kit.shared_data import BackgroundTasks, UpdateInterval
from control_room.queries import Operations, StatusReader
from control_room.worker import Events

HERE = Path(__file__).parents[1]


NAVIGATION: Mapping[str, PageEntry] = {
    "/": PageEntry("Now", "Overview"),
    "/bus": PageEntry("Messages", "Overview"),
    "/audit": PageEntry("Audit trail", "Overview"),
    "/hosts": PageEntry("Hosts", "Hosts"),
    "/host-table": PageEntry("Table of hosts", "Hosts"),
    "/metal": PageEntry("Bare metal", "Hosts"),
    "/instances": PageEntry("Instances", "Instances"),
    "/builds": PageEntry("Builds", "Instances"),
}


MOST_FIELDS = 300  # fields of a form: more than the dead letters of a page


class PageRefused(Exception):
    """Error: an HTTP request for a page was refused; an error page shows the reason."""

    def __init__(self, status: int, title: str, text: str, *, retry_after: float = 0.0) -> None:
        super().__init__(text)
        self.status, self.title, self.text = status, title, text
        self.headers = {"retry-after": str(ceil(retry_after))} if retry_after else {}


# returns the HTML of a section, from the request and the subject of the page, or an empty text
Section = Callable[[Request, Any], Awaitable[str]]


# executes an operation on the host with this root, from the fields of its form; returns the host's new state
HostOperation = Callable[[str, Mapping[str, str]], Awaitable[str]]


@dataclass(frozen=True)
class FoundRecords:
    """The records that a feature has of the id of a build page."""

    text: str = ""  # HTML; empty: no records were found
    silent: Sequence[str] = ()  # workers that did not answer


@dataclass(frozen=True)
class FoundPage:
    """The page of an object that the search found."""

    kind: str  # of the object, such as `host`
    name: str
    address: str
    detail: str = ""  # tells objects of the same name apart


@dataclass(frozen=True, kw_only=True)
class AddedPages:
    """The pages of a feature, and what it adds to pages of the kernel and of other features."""

    routes: Sequence[Route] = ()
    sections: Mapping[str, Section] = field(default_factory=dict)  # name of a page → section
    # finds further records of the id of a build page
    records: Callable[[str], Awaitable[FoundRecords]] | None = None
    # finds pages for an id or a name that an operator searches
    find: Callable[[str], Awaitable[Sequence[FoundPage]]] | None = None
    # value of `act` in a form on the page of a host → operation
    host_operations: Mapping[str, HostOperation] = field(default_factory=dict)


@dataclass(frozen=True)
class PagePart:
    """Makes the pages of a feature, and what it adds to pages of others."""

    make: "Callable[[PageContext, Renderer], AddedPages]"


@dataclass(frozen=True, kw_only=True)
class FeaturePages:
    """The navigation and templates of a feature's pages, and the function that makes the pages."""

    navigation: Mapping[str, PageEntry]  # address → entry
    make: "Callable[[PageContext, Renderer], AddedPages]"
    templates: Path


@dataclass(frozen=True, kw_only=True)
class PageContext:
    """The objects that all pages share: queries, operations, sessions, clock and pages of features."""

    queries: Queries
    events: Events
    status: StatusReader
    access: AccessRules
    sessions: Sessions
    clock: Clock
    operations: Operations
    tasks: BackgroundTasks
    features: Sequence[FeaturePages] = ()
    request_fields: Sequence[RequestField] = ()  # that features add to the form for build requests


class Renderer:
    """Renders HTML templates to whole pages and to parts of pages."""

    def __init__(self, context: PageContext) -> None:
        self._access, self._sessions = context.access, context.sessions
        navigation = dict(NAVIGATION)
        for feature in context.features:
            navigation |= feature.navigation
        self._templates = Environment(
            loader=FileSystemLoader(
                [HERE / "templates", *(feature.templates for feature in context.features)]
            ),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals.update(
            duration=words.duration,
            time_text=time_text,
            expected_evaluation=words.expected_evaluation,
            expected_start=words.expected_start,
            count=words.count,
            several=words.several,
            rate=words.rate,
            listed=words.listed,
            amounts_text=words.amounts_text,
            moment=_moment,
            printable=printable,
            bar=_bar,
            with_code=_with_code,
            token=_token,
            navigation=grouped(navigation),
            page_at=partial(page_at, navigation),
            themes=THEMES,
        )
        self.added = [feature.make(context, self) for feature in context.features]

    async def sections(self, page: str, request: Request, subject: Any) -> list[str]:
        """Return the HTML of all sections that features add to a page, in the order of the list of
        features, without empty ones.
        """
        sections = [added.sections[page] for added in self.added if page in added.sections]
        return [text for text in await asyncio.gather(*(each(request, subject) for each in sections)) if text]

    async def records(self, id_: str) -> FoundRecords:
        """Return what all features have recorded of the id of a build page."""
        finding = (added.records(id_) for added in self.added if added.records is not None)
        found = await asyncio.gather(*finding)
        silent = [worker for each in found for worker in each.silent]
        return FoundRecords("".join(each.text for each in found), silent)

    async def find(self, text: str) -> list[FoundPage]:
        """Return the pages that features find for an id or a name."""
        found = await asyncio.gather(*(added.find(text) for added in self.added if added.find is not None))
        return [page for pages in found for page in pages]

    @property
    def host_operations(self) -> Mapping[str, HostOperation]:
        """Return the operations on hosts that features add, by the value of `act` in their forms."""
        return {act: operate for added in self.added for act, operate in added.host_operations.items()}

    def part(self, template: str, **values: Any) -> str:
        """Render a template that is a part of a page, without the frame."""
        text: str = self._templates.get_template(template).render(values)
        return text

    def page(self, request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
        """Render a page with the frame: navigation, the visitor's name and theme."""
        common = {**self.of_visitor(request), "theme": theme_of(request), "here": request.url.path}
        return HTMLResponse(self.part(template, **common, **values), status_code=status)

    def of_visitor(self, request: Request) -> dict[str, Any]:
        """Return the template variables of forms: the user, the permission to act, and the form token."""
        session = session_of(request)
        return {
            "visitor": session.visitor,
            "may_act": self._access.may_act(session.visitor),
            "form_token": self._sessions.form_token(session),
        }

    def part_of_visitor(
        self,
        request: Request,
        rendered: dict[str, str],
        interval: UpdateInterval,
        template: str,
        **values: Any,
    ) -> str:
        """Return a part that has forms. `rendered` keeps it by form token; "" for users with read access."""
        visitor = self.of_visitor(request)
        token = visitor["form_token"] if visitor["may_act"] else ""
        if token not in rendered:
            with interval.rendering():
                rendered[token] = self.part(template, **visitor, **values)
        return rendered[token]

    async def form(self, request: Request) -> dict[str, str]:
        """Return a posted form's fields; raise PageRefused if its token is wrong or the user is read-only."""
        fields = await self.open_form(request)
        if not self._access.may_act(session_of(request).visitor):
            text = "To change something, sign in with a token of the operator or admin role."
            raise PageRefused(403, "You have read access only", text)
        return fields

    async def open_form(self, request: Request) -> dict[str, str]:
        """Return a posted form's fields, for read-only users too; raise PageRefused if its token is wrong."""
        fields = await self.foreign_form(request)
        if not self._sessions.is_form_token(session_of(request), fields.pop("form_token", "")):
            text = "This form is not of your session, or too old: load the page again and repeat it."
            raise PageRefused(403, "Not done", text)
        return fields

    async def foreign_form(self, request: Request) -> dict[str, str]:
        """Return a posted form's fields without a check of its form token: another site (Keystone) may post
        it.
        """
        body = (await request.body()).decode("utf-8", "replace")
        try:
            return dict(parse_qsl(body, keep_blank_values=True, max_num_fields=MOST_FIELDS))
        except ValueError:
            raise PageRefused(413, "Not done", f"A form has at most {MOST_FIELDS} fields.") from None


Endpoint = Callable[[Request], Awaitable[Response]]


def get(path: str, endpoint: Endpoint) -> Route:
    """Return the route of a page or of an event stream."""
    return Route(path, endpoint, methods=["GET"])


def post(path: str, endpoint: Endpoint) -> Route:
    """Return the route of a form."""
    return Route(path, endpoint, methods=["POST"])


class LivePages(Protocol):
    """A page whose open copies an event stream updates."""

    async def page(self, request: Request) -> Response:
        """Return the whole page."""

    async def events(self, request: Request) -> Response:
        """Return the stream of events that refreshes an open page."""


def live(path: str, pages: LivePages) -> list[Route]:
    """Return the routes of a page and of its event stream."""
    return [get(path, pages.page), get(f"{path}/events", pages.events)]


def unknown_operation(name: str, on: str) -> PageRefused:
    """Return the refusal of a form whose operation does not exist."""
    return PageRefused(400, "Not done", f"There is no operation {name[:40]!r} on {on}.")


class PageGroup:
    """Base class of groups of web pages; the pages of one group are about one subject, such as hosts."""

    def __init__(self, context: PageContext, renderer: Renderer) -> None:
        self._context = context
        self._renderer = renderer


def grouped(navigation: Mapping[str, PageEntry]) -> dict[NavigationGroup, dict[str, str]]:
    """Return by group the names of its pages by address, without groups that have no page."""
    found: dict[NavigationGroup, dict[str, str]] = {group: {} for group in get_args(NavigationGroup)}
    for address, entry in navigation.items():
        found[entry.group][address] = entry.name
    return {group: pages for group, pages in found.items() if pages}


def page_at(navigation: Mapping[str, PageEntry], path: str) -> str:
    """Return the address of the page of the navigation to which a path belongs; "" if it belongs to none."""
    above = [address for address in navigation if path == address or path.startswith(f"{address}/")]
    return max(above, key=len, default="")


def _bar(width: float, left: float = 0.0) -> Markup:
    """Return an SVG of a horizontal bar; its width and left edge are percentages."""
    return Markup(
        '<svg viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
        '<rect x="{:.2f}" width="{:.2f}" height="4"/></svg>'
    ).format(left, width)


def _moment(seconds: float) -> str:
    """Return a time in UTC to the second as text, or `unknown` for 0."""
    return moment_text(seconds) if seconds else "unknown"


def _with_code(text: str) -> Markup:
    """Return a text as HTML; what is between backticks is a command or another code."""
    parts = (printable(part) for part in text.split("`"))
    return Markup("").join(
        Markup("<code>{}</code>" if at % 2 else "{}").format(part) for at, part in enumerate(parts)
    )


def _token(form_token: str) -> Markup:
    return Markup('<input type="hidden" name="form_token" value="{}">').format(form_token)
