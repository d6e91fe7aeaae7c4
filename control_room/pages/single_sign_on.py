"""Sign-in by Keystone's WebSSO: Keystone's page posts an unscoped token, and the user picks a project.

Browsers send no `SameSite=Strict` cookie with Keystone's form, or with a redirect that follows the form. So
a separate cookie proves that the sign-in began in this browser. The response to the form is not a redirect,
but a page that loads the home page.
"""

import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import URL
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bus.clock import Clock
from bus.errors import Unavailable
from control_room.access import from_our_page, session_cookie
from control_room.kit.access import Project, SingleSignOn
from control_room.kit.frame import PageContext, PageGroup, PageRefused, Renderer
from control_room.kit.page_requests import redirect_to, session_of
from control_room.pages.middleware import SSO, SignInPages

SECONDS = 600.0  # time limit of the sign-in at Keystone, and then again of the choice of a project
MOST_TOKENS = 1000  # of users that still have to pick a project; the oldest is dropped
_COOKIE = re.compile(r"([0-9]{1,12})\.([0-9a-f]{64})")

_NO_TOKEN = "Keystone does not accept the token of this sign-in. Sign in again."
_NO_PROJECT = "Your user has a role on no project of Keystone."


class BeginningSignIns:
    """Makes and checks the cookie that proves that a browser began to sign in: a signed expiry time."""

    def __init__(self, clock: Clock) -> None:
        self._key = secrets.token_bytes(32)
        self._clock = clock

    def new(self) -> str:
        """Return the value of the cookie with which a sign-in begins."""
        until = f"{self._clock.now() + SECONDS:.0f}"
        return f"{until}.{self._signature(until)}"

    def is_valid(self, cookie: str) -> bool:
        """Return whether a cookie is of this control room and its time has not passed."""
        parts = _COOKIE.fullmatch(cookie)
        if parts is None or not hmac.compare_digest(parts[2], self._signature(parts[1])):
            return False
        return self._clock.now() < float(parts[1])

    def _signature(self, until: str) -> str:
        return hmac.new(self._key, until.encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class _Unscoped:
    """The token of a signed-in user that still has to choose one of several Keystone projects."""

    token: str
    projects: Sequence[Project]
    until: float


class SingleSignOnPages(PageGroup):
    """Signs users in by a Keystone that redirects them back."""

    def __init__(self, context: PageContext, renderer: Renderer, sign_in: SignInPages) -> None:
        super().__init__(context, renderer)
        self._sign_in = sign_in
        self._beginning = BeginningSignIns(context.clock)
        self._unscoped: OrderedDict[str, _Unscoped] = OrderedDict()  # by the id of the session

    async def start(self, request: Request) -> Response:
        """Begin a sign-on: redirect to Keystone, with a cookie to prove later that this browser began it."""
        single_sign_on = self._offered(request)
        if not from_our_page(request.headers):
            raise PageRefused(403, "Not done", "The link is on another site. Sign in from the page here.")
        ours = URL(scope=request.scope).replace(path=SSO, query="", fragment="")
        answer = RedirectResponse(single_sign_on.address(str(ours)), status_code=303)
        answer.set_cookie(
            _cookie(request), self._beginning.new(), max_age=int(SECONDS), path="/",
            secure=True, httponly=True, samesite="none",
        )  # fmt: skip
        return answer

    async def accept(self, request: Request) -> Response:
        """Sign the user in with the token that Keystone's page posted, or let the user choose a project."""
        single_sign_on = self._offered(request)
        if not self._beginning.is_valid(request.cookies.get(_cookie(request), "")):
            request.scope["session.new"] = False  # do not replace a session that this browser may have
            text = "This sign-in did not begin in this browser, or more than ten minutes ago."
            raise PageRefused(403, "Not signed in", text)
        self._sign_in.check_pause(request)
        token = (await self._renderer.foreign_form(request)).get("token", "")
        try:
            projects = await single_sign_on.projects(token)
            if projects is None:
                return await self._sign_in.refuse(request, _NO_TOKEN)
            if not projects:
                return await self._sign_in.page(request, _NO_PROJECT, 403)
            if len(projects) == 1:
                after = self._renderer.page(request, "signed_in.html")
                answer = await self._enter(request, token, projects[0], after)
            else:
                self._remember(request, token, projects)
                answer = self._choice(request, projects)
        except Unavailable as problem:
            return await self._sign_in.page(request, str(problem), 503)
        answer.delete_cookie(_cookie(request), path="/", secure=True, httponly=True, samesite="none")
        return answer

    async def choose(self, request: Request) -> Response:
        """Sign the user in for the project that the user chose in the form."""
        self._offered(request)
        chosen = (await self._renderer.open_form(request)).get("project", "")
        self._sign_in.check_pause(request)
        unscoped = self._unscoped.get(session_of(request).id)
        if unscoped is None or unscoped.until <= self._context.clock.now():
            return await self._sign_in.page(request, "The sign-in took too long. Sign in again.", 403)
        project = next((project for project in unscoped.projects if project.id == chosen), None)
        if project is None:
            return self._choice(request, unscoped.projects, "This is no project of yours.", 403)
        try:
            answer = await self._enter(request, unscoped.token, project, redirect_to("/"))
        except Unavailable as problem:
            return self._choice(request, unscoped.projects, str(problem), 503)
        self._unscoped.pop(session_of(request).id, None)
        return answer

    def _offered(self, request: Request) -> SingleSignOn:
        """Return the configured single sign-on; raise PageRefused without it, or without TLS."""
        found = self._context.access.single_sign_on
        if found is None:
            raise PageRefused(404, "There is no such page", "Single sign-on is off (control_room_sso).")
        if request.url.scheme != "https":
            text = "Single sign-on needs HTTPS: browsers send its cookie over TLS only."
            raise PageRefused(403, "Not signed in", text)
        return found

    async def _enter(self, request: Request, token: str, project: Project, after: Response) -> Response:
        single_sign_on = self._offered(request)
        credential = await single_sign_on.sign_in(token, project)
        visitor = credential()
        if visitor is None:
            problem = f"Keystone does not let your user into the project {project.name}. Sign in again."
            return await self._sign_in.refuse(request, problem)
        return await self._sign_in.admit(request, visitor, credential, after)

    def _remember(self, request: Request, token: str, projects: Sequence[Project]) -> None:
        now, id_ = self._context.clock.now(), session_of(request).id
        self._unscoped.pop(id_, None)
        self._unscoped[id_] = _Unscoped(token, projects, now + SECONDS)
        while len(self._unscoped) > MOST_TOKENS or next(iter(self._unscoped.values())).until <= now:
            self._unscoped.popitem(last=False)

    def _choice(
        self, request: Request, projects: Sequence[Project], problem: str = "", status: int = 200
    ) -> Response:
        shown = {"projects": projects, "problem": problem}
        return self._renderer.page(request, "project.html", status=status, **shown)


def _cookie(request: Request) -> str:
    return f"{session_cookie(request.scope)}_sso"
