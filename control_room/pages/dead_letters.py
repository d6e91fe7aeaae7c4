"""Dead letters: lists, full texts, and after a second confirmation replay or deletion."""

import logging
import re
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bus.errors import NOT_JSON, BrokerRefused, NoSuchLetter, Unavailable
from bus.masking import printable
from bus.protocol import DeadLetter
from control_room.core.words import several
from control_room.pages.frame import PageGroup, PageRefused, user_of

MOST_BODY = 200_000  # characters that are shown
_SHORT = 300
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_WITH_PAGE = ("build", "request", "move")  # fields whose ids have a page


@dataclass(frozen=True, kw_only=True)
class LetterDetails:
    letter: DeadLetter
    reason: str
    traceback: str
    body: str
    cut: bool
    about: tuple[tuple[str, str], ...]  # field and id of what has a page


def letter_row(letter: DeadLetter) -> DeadLetter:
    """Return a dead letter for a page, with escaped texts, a short reason, and 0 for invalid times."""
    reason = " ".join(letter.reason.split())
    return replace(
        letter,
        queue=printable(letter.queue),
        key=printable(letter.key),
        type=printable(letter.type),
        reason=printable(reason[:_SHORT]) + (" …" if len(reason) > _SHORT else ""),
        cell="unknown" if letter.cell == "?" else printable(letter.cell),
        died=_moment(letter.died),
        first_died=_moment(letter.first_died),
        correlation=printable(letter.correlation),
    )


def letter_details(letter: DeadLetter) -> LetterDetails:
    try:
        body = msgspec.json.format(letter.body, indent=2).decode(errors="replace")
    except NOT_JSON:
        body = letter.body.decode(errors="replace")
    return LetterDetails(
        letter=letter_row(letter),
        reason=printable(letter.reason, lines=True),
        traceback=printable(letter.traceback, lines=True),
        body=printable(body[:MOST_BODY], lines=True),
        cut=len(body) > MOST_BODY,
        about=_about(letter.body),
    )


def _about(body: bytes) -> tuple[tuple[str, str], ...]:
    try:
        fields = msgspec.json.decode(body)
    except NOT_JSON:
        return ()
    if not isinstance(fields, dict):
        return ()
    found = [(name, fields.get(name)) for name in _WITH_PAGE]
    return tuple((name, id_) for name, id_ in found if isinstance(id_, str) and _ID.fullmatch(id_))


def _moment(seconds: float) -> float:
    """Return a time in a dead letter, or 0 if it is invalid: other programs may have set it."""
    return seconds if 0 < seconds < 2.0**32 else 0.0


log = logging.getLogger(__name__)

LISTED = 100
OPERATIONS = {"replay": "replayed", "drop": "dropped"}
_FIELD = "letter:"  # prefix of the fields that select letters


class DeadLetterPages(PageGroup):
    async def letter(self, request: Request) -> Response:
        id_ = request.query_params.get("id", "")
        found = await self._found({id_}, beginning=id_)
        if id_ not in found:
            text = "It may have been replayed or dropped meanwhile."
            raise PageRefused(404, "There is no such dead letter", text)
        now, details = self._context.clock.now(), letter_details(found[id_])
        return self._renderer.page(request, "letter.html", whole=details, now=now, moment=moment)

    async def operate(self, request: Request) -> Response:
        fields = await self._renderer.form(request)
        name = fields.get("act", "")
        ids = [field.removeprefix(_FIELD) for field in fields if field.startswith(_FIELD)]
        if name not in OPERATIONS:
            raise PageRefused(400, "Not done", f"There is no operation {name[:40]!r} on dead letters.")
        if not ids:
            return await self.page(request, problems=["No letter was marked: nothing was done."], status=400)
        if fields.get("sure") != "yes":
            return await self._confirmation(request, name, ids)
        with _available():
            if name == "replay":
                count, kept = await self._context.operations.bus.replay(ids)
            else:
                count, kept = await self._context.operations.bus.drop(ids), ()
        log.info("%s: %s of %d dead letters: %s", user_of(request), name, count, ids)
        if kept or count < len(ids):
            missing = len(ids) - count - len(kept)
            problems = [*kept]
            if missing > 0:
                problems.append(f"{several(missing, 'letter')} were deleted before.")
            done = f"{count:,} {OPERATIONS[name]}."
            return await self.page(request, done=done, problems=problems, status=409)
        return RedirectResponse(f"/bus/dead?{OPERATIONS[name]}={count}", status_code=303)

    async def _confirmation(self, request: Request, name: str, ids: list[str]) -> Response:
        found = await self._found(set(ids))
        letters = [letter_row(found[id_]) for id_ in ids if id_ in found]
        if not letters:
            problems = ["None of them is there any more: nothing was done."]
            return await self.page(request, problems=problems, status=409)
        return self._renderer.page(request, "letters_sure.html", what=name, letters=letters, moment=moment)

    async def page(
        self, request: Request, *, done: str = "", problems: list[str] | None = None, status: int = 200
    ) -> Response:
        parameters = request.query_params
        queue, after = parameters.get("queue", ""), parameters.get("after", "")
        done = done or " ".join(
            f"{parameters[word]} {word}."
            for word in OPERATIONS.values()
            if parameters.get(word, "").isdecimal()
        )
        problems = problems or []
        try:
            letters, more = await self._listed(queue, after)
        except NoSuchLetter:
            problems.append("The letter before this page was deleted: these are the oldest.")
            letters, more = await self._listed(queue, "")
        return self._renderer.page(
            request,
            "letters.html",
            status=status,
            letters=[letter_row(letter) for letter in letters],
            more=letters[-1].id if more else "",
            queue=queue,
            after=after,
            done=done,
            problems=problems,
            elsewhere=self._context.operations.bus.elsewhere,
            now=self._context.clock.now(),
            moment=moment,
        )

    async def _listed(self, queue: str, after: str) -> tuple[list[DeadLetter], bool]:
        """Return a page of the dead letters of this queue, or of all, and whether there are more."""
        found: list[DeadLetter] = []
        with _available():
            async with aclosing(self._context.operations.bus.letters(after=after)) as letters:
                async for letter in letters:
                    if queue and letter.queue != queue:
                        continue
                    if len(found) == LISTED:
                        return found, True
                    found.append(letter)
        return found, False

    async def _found(self, ids: set[str], beginning: str = "") -> dict[str, DeadLetter]:
        found: dict[str, DeadLetter] = {}
        with _available():
            async with aclosing(self._context.operations.bus.letters(beginning=beginning)) as letters:
                async for letter in letters:
                    if letter.id in ids:
                        found[letter.id] = letter
                        if len(found) == len(ids):
                            break
        return found


@contextmanager
def _available() -> Iterator[None]:
    """Show a page that names the problem if the broker does not answer."""
    try:
        yield
    except (Unavailable, BrokerRefused) as problem:
        raise PageRefused(503, "The bus does not answer", f"{problem}.") from None


def moment(seconds: float) -> str:
    if not seconds:
        return "unknown"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
