"""Who comes in by a token, goes out again, and how bright it is to be."""

from starlette.requests import Request
from starlette.responses import Response

from control_room.pages.entry import set_session
from control_room.pages.frame import THEMES, Frame, OpenRoom, back_to

_A_YEAR = 365 * 86400


class SigningIn:
    def __init__(self, room: OpenRoom, frame: Frame) -> None:
        self._room = room
        self._frame = frame

    async def page(self, request: Request) -> Response:
        return self._frame.page(request, "login.html", problem="", open=self._room.access.may_look(None))

    async def sign_in(self, request: Request) -> Response:
        fields = await self._frame.open_form(request)
        visitor = self._room.access.authenticate(fields.get("token", "").strip())
        if visitor is None:
            return self._frame.page(
                request,
                "login.html",
                status=401,
                problem="This token is not known here.",
                open=self._room.access.may_look(None),
            )
        answer = back_to("/")
        session = self._room.sessions.begin(self._room.clock.now(), visitor)
        set_session(answer, request.scope, self._room, session)
        return answer

    async def sign_out(self, request: Request) -> Response:
        await self._frame.open_form(request)
        answer = back_to("/")
        set_session(answer, request.scope, self._room, self._room.sessions.begin(self._room.clock.now()))
        return answer

    async def theme(self, request: Request) -> Response:
        fields = await self._frame.open_form(request)
        answer = back_to(fields.get("back", "/"))
        theme = fields.get("theme", "")
        if theme in THEMES:
            answer.set_cookie("berth_theme", theme, max_age=_A_YEAR, httponly=True, samesite="strict")
        return answer
