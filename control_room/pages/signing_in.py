"""Sign-in with a token, sign-out, and the choice of colours."""

import logging

from starlette.requests import Request
from starlette.responses import Response

from control_room.limits import SignInBrake
from control_room.pages.cookies import set_session, set_theme
from control_room.pages.frame import THEMES, Frame, OpenRoom, PageRefused, address_of, back_to, session_of

log = logging.getLogger(__name__)


class SigningIn:
    def __init__(self, room: OpenRoom, frame: Frame) -> None:
        self._room = room
        self._frame = frame
        self._brake = SignInBrake()

    async def page(self, request: Request) -> Response:
        return self._page(request)

    def _page(self, request: Request, problem: str = "", status: int = 200) -> Response:
        may_look = self._room.access.may_look(None)
        return self._frame.page(request, "login.html", status=status, problem=problem, open=may_look)

    async def sign_in(self, request: Request) -> Response:
        fields = await self._frame.open_form(request)
        room, address = self._room, address_of(request.scope)
        if (pause := self._brake.pause(address, room.clock.monotonic())) > 0:
            raise PageRefused(
                429,
                "Too many attempts",
                f"Too many sign-ins of this address have failed. Try again in {pause:.0f} s.",
                retry_after=pause,
            )
        credential = room.access.credential(fields.get("token", "").strip())
        visitor = credential()
        if visitor is None:
            failures = self._brake.failed(address, room.clock.monotonic())
            log.warning("sign-in refused: unknown token, from %s, failure %d", address, failures)
            return self._page(request, "This token is not known here.", 401)
        room.sessions.end(session_of(request).id)
        session = room.sessions.sign_in(visitor, credential, room.clock.now())
        log.info("%s signed in from %s", visitor.user, address)
        answer = back_to("/")
        set_session(answer, request.scope, session)
        return answer

    async def sign_out(self, request: Request) -> Response:
        await self._frame.open_form(request)
        session = session_of(request)
        if session.visitor is not None:
            log.info("%s signed out", session.visitor.user)
        self._room.sessions.end(session.id)
        answer = back_to("/")
        set_session(answer, request.scope, self._room.sessions.new())
        return answer

    async def theme(self, request: Request) -> Response:
        fields = await self._frame.open_form(request)
        answer = back_to(fields.get("back", "/"))
        theme = fields.get("theme", "")
        if theme in THEMES:
            set_theme(answer, request.scope, theme)
        return answer
