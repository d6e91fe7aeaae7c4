"""Dead letters: lists, full texts, and after a second confirmation replay or deletion."""

import logging
from contextlib import aclosing
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bus.errors import BrokerRefused, NoSuchLetter, Unavailable
from bus.protocol import DeadLetter
from control_room.core.words import several
from control_room.dead_letters import letter_shown, letter_whole
from control_room.pages.frame import Frame, OpenRoom, PageRefused, who

log = logging.getLogger(__name__)

LISTED = 100
ACTS = {"replay": "replayed", "drop": "dropped"}
_MARK = "letter:"  # what the names of the fields begin with that mark one
_AWAY = (Unavailable, BrokerRefused)


class LetterPages:
    def __init__(self, room: OpenRoom, frame: Frame) -> None:
        self._room = room
        self._frame = frame

    async def list_all(self, request: Request) -> Response:
        return await self._list(request)

    async def page(self, request: Request) -> Response:
        id_ = request.query_params.get("id", "")
        found = await self._found({id_}, beginning=id_)
        if id_ not in found:
            raise PageRefused(
                404, "There is no such dead letter", "It may have been replayed or dropped meanwhile."
            )
        return self._frame.page(
            request, "letter.html", whole=letter_whole(found[id_]), now=self._room.clock.now(), moment=moment
        )

    async def act(self, request: Request) -> Response:
        fields = await self._frame.form(request)
        what = fields.get("act", "")
        ids = [name.removeprefix(_MARK) for name in fields if name.startswith(_MARK)]
        if what not in ACTS:
            raise PageRefused(400, "Not done", f"With a dead letter one cannot {what[:40]!r}.")
        if not ids:
            return await self._list(request, problems=["No letter was marked: nothing was done."], status=400)
        if fields.get("sure") != "yes":
            return await self._ask_again(request, what, ids)
        try:
            if what == "replay":
                count, stay = await self._room.means.bus.replay(ids)
            else:
                count, stay = await self._room.means.bus.drop(ids), ()
        except _AWAY as problem:
            raise PageRefused(503, "The bus does not answer", f"{problem}.") from None
        log.info("%s: %s of %d dead letters: %s", who(request), what, count, ids)
        if stay or count < len(ids):
            gone = len(ids) - count - len(stay)
            problems = [*stay, *([f"{several(gone, 'letter')} had gone meanwhile."] if gone > 0 else [])]
            return await self._list(request, done=f"{count:,} {ACTS[what]}.", problems=problems, status=409)
        return RedirectResponse(f"/bus/dead?{ACTS[what]}={count}", status_code=303)

    async def _ask_again(self, request: Request, what: str, ids: list[str]) -> Response:
        found = await self._found(set(ids))
        letters = [letter_shown(found[id_]) for id_ in ids if id_ in found]
        if not letters:
            problems = ["None of them is there any more: nothing was done."]
            return await self._list(request, problems=problems, status=409)
        return self._frame.page(request, "letters_sure.html", what=what, letters=letters, moment=moment)

    async def _list(
        self, request: Request, *, done: str = "", problems: list[str] | None = None, status: int = 200
    ) -> Response:
        asked = request.query_params
        queue, after = asked.get("queue", ""), asked.get("after", "")
        done = done or " ".join(
            f"{asked[word]} {word}." for word in ACTS.values() if asked.get(word, "").isdecimal()
        )
        problems = problems or []
        try:
            letters, more = await self._some(queue, after)
        except NoSuchLetter:
            problems.append("The letter that this page was to begin behind is gone: these are the oldest.")
            letters, more = await self._some(queue, "")
        return self._frame.page(
            request,
            "letters.html",
            status=status,
            letters=[letter_shown(letter) for letter in letters],
            more=letters[-1].id if more else "",
            queue=queue,
            after=after,
            done=done,
            problems=problems,
            elsewhere=self._room.means.bus.elsewhere,
            now=self._room.clock.now(),
            moment=moment,
        )

    async def _some(self, queue: str, after: str) -> tuple[list[DeadLetter], bool]:
        """Return a page of the letters of this queue, or of all, and whether there are more."""
        found: list[DeadLetter] = []
        try:
            async with aclosing(self._room.means.bus.letters(after=after)) as letters:
                async for letter in letters:
                    if queue and letter.queue != queue:
                        continue
                    if len(found) == LISTED:
                        return found, True
                    found.append(letter)
        except _AWAY as problem:
            raise PageRefused(503, "The bus does not answer", f"{problem}.") from None
        return found, False

    async def _found(self, ids: set[str], beginning: str = "") -> dict[str, DeadLetter]:
        found: dict[str, DeadLetter] = {}
        try:
            async with aclosing(self._room.means.bus.letters(beginning=beginning)) as letters:
                async for letter in letters:
                    if letter.id in ids:
                        found[letter.id] = letter
                        if len(found) == len(ids):
                            break
        except _AWAY as problem:
            raise PageRefused(503, "The bus does not answer", f"{problem}.") from None
        return found


def moment(seconds: float) -> str:
    if not seconds:
        return "unknown"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
