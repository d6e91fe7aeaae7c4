"""Sign-in with a token, sign-out, and the choice of colours."""

import logging

from starlette.requests import Request
from starlette.responses import Response

from control_room.access import set_session, set_theme
from control_room.limits import SignInFailures
from control_room.pages.frame import (
    THEMES,
    PageContext,
    PageGroup,
    PageRefused,
    Renderer,
    address_of,
    redirect_to,
    session_of,
)

log = logging.getLogger(__name__)


class SignInPages(PageGroup):
    def __init__(self, context: PageContext, renderer: Renderer) -> None:
        super().__init__(context, renderer)
        self._failures = SignInFailures()

    async def page(self, request: Request, problem: str = "", status: int = 200) -> Response:
        is_open = self._context.access.may_read(None)
        return self._renderer.page(request, "login.html", status=status, problem=problem, open=is_open)

    async def sign_in(self, request: Request) -> Response:
        fields = await self._renderer.open_form(request)
        context, address = self._context, address_of(request.scope)
        if (pause := self._failures.pause(address, context.clock.monotonic())) > 0:
            raise PageRefused(
                429,
                "Too many attempts",
                f"Too many sign-ins of this address have failed. Try again in {pause:.0f} s.",
                retry_after=pause,
            )
        credential = context.access.credential(fields.get("token", "").strip())
        visitor = credential()
        if visitor is None:
            failures = self._failures.failed(address, context.clock.monotonic())
            log.warning("sign-in refused: unknown token, from %s, failure %d", address, failures)
            return await self.page(request, "This token is not known here.", 401)
        context.sessions.end(session_of(request).id)
        session = context.sessions.sign_in(visitor, credential, context.clock.now())
        log.info("%s signed in from %s", visitor.user, address)
        answer = redirect_to("/")
        set_session(answer, request.scope, session)
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
