"""Pages about the load of the bus, and about dead letters, which can be read, replayed and dropped."""

import logging
import re
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bus.errors import NOT_JSON, BrokerRefused, NoSuchLetter, Unavailable
from bus.masking import printable
from bus.protocol import DeadLetter
from control_room.bus_load import BusLoad, bus_load
from control_room.kit.frame import PageContext, PageGroup, PageRefused, Renderer, unknown_operation
from control_room.kit.page_requests import user_of
from control_room.kit.refresh import PageUpdates, soon
from control_room.kit.replies import Reply
from control_room.kit.shared_data import SharedData
from control_room.kit.words import several

MOST_BODY = 200_000  # characters that are shown
_SHORT = 300
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_WITH_PAGE = ("build", "request", "move")  # fields with ids that have a page


@dataclass(frozen=True, kw_only=True)
class LetterDetails:
    """A dead letter as its page shows it."""

    letter: DeadLetter
    reason: str
    traceback: str
    body: str
    cut: bool
    about: tuple[tuple[str, str], ...]  # fields and ids that link to a page


def letter_row(letter: DeadLetter) -> DeadLetter:
    """Return a dead letter as a page shows it: escaped texts, a short reason, and 0 for an invalid time."""
    reason = " ".join(letter.reason.split())
    return replace(
        letter,
        queue=printable(letter.queue),
        key=printable(letter.key),
        sender=printable(letter.sender),
        type=printable(letter.type),
        reason=printable(reason[:_SHORT]) + (" …" if len(reason) > _SHORT else ""),
        cell="unknown" if letter.cell == "?" else printable(letter.cell),
        died=_moment(letter.died),
        first_died=_moment(letter.first_died),
        correlation=printable(letter.correlation),
    )


def letter_details(letter: DeadLetter) -> LetterDetails:
    """Return a dead letter with its body formatted as JSON, if it is JSON."""
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
    """Return a time from a dead letter's header, in seconds since 1970, or 0 if it is no plausible time."""
    return seconds if 0 < seconds < 2.0**32 else 0.0


log = logging.getLogger(__name__)

LISTED = 100
OPERATIONS = {"replay": "replayed", "drop": "dropped"}
_FIELD = "letter:"  # prefix of the fields that select letters


class DeadLetterPages(PageGroup):
    """Lists dead letters; operators replay or drop them."""

    async def letter(self, request: Request) -> Response:
        """Show one dead letter."""
        id_ = request.query_params.get("id", "")
        found = await self._found({id_}, beginning=id_)
        if id_ not in found:
            text = "It may have been replayed or dropped meanwhile."
            raise PageRefused(404, "There is no such dead letter", text)
        now, details = self._context.clock.now(), letter_details(found[id_])
        return self._renderer.page(request, "letter.html", whole=details, now=now)

    async def operate(self, request: Request) -> Response:
        """Replay or drop the marked letters, after a confirmation."""
        fields = await self._renderer.form(request)
        name = fields.get("act", "")
        ids = [field.removeprefix(_FIELD) for field in fields if field.startswith(_FIELD)]
        if name not in OPERATIONS:
            raise unknown_operation(name, "dead letters")
        if not ids:
            return await self.page(request, problems=["No letter was marked: nothing was done."], status=400)
        if fields.get("sure") != "yes":
            return await self._confirmation(request, name, ids)
        with _available():
            if name == "replay":
                count, not_replayed = await self._context.operations.bus.replay(ids)
            else:
                count, not_replayed = await self._context.operations.bus.drop(ids), ()
        log.info("%s: %s of %d dead letters: %s", user_of(request), name, count, ids)
        if not_replayed or count < len(ids):
            missing = len(ids) - count - len(not_replayed)
            problems = [*not_replayed]
            if missing > 0:
                problems.append(f"{several(missing, 'letter')} were deleted before.")
            done = f"{count:,} {OPERATIONS[name]}."
            return await self.page(request, done=done, problems=problems, status=409)
        return RedirectResponse(f"/bus/dead?{OPERATIONS[name]}={count}", status_code=303)

    async def _confirmation(self, request: Request, name: str, ids: list[str]) -> Response:
        found = await self._found(set(ids))
        letters = [letter_row(found[id_]) for id_ in ids if id_ in found]
        if not letters:
            problems = ["All of them were deleted before: nothing was done."]
            return await self.page(request, problems=problems, status=409)
        return self._renderer.page(request, "letters_sure.html", what=name, letters=letters)

    async def page(
        self, request: Request, *, done: str = "", problems: list[str] | None = None, status: int = 200
    ) -> Response:
        parameters = request.query_params
        queue, after = parameters.get("queue", ""), parameters.get("after", "")
        done = done or " ".join(
            f"{parameters[operation]} {operation}."
            for operation in OPERATIONS.values()
            if parameters.get(operation, "").isdecimal()
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
        )

    async def _listed(self, queue: str, after: str) -> tuple[list[DeadLetter], bool]:
        """Return up to 100 dead letters of a queue ("": of all), after the letter with the id `after`, and
        whether there are more.
        """
        found: list[DeadLetter] = []
        with _available():
            transport = self._context.operations.bus.transport
            async with aclosing(transport.each_dead_letter(after=after)) as letters:
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
            transport = self._context.operations.bus.transport
            async with aclosing(transport.each_dead_letter(beginning=beginning)) as letters:
                async for letter in letters:
                    if letter.id in ids:
                        found[letter.id] = letter
                        if len(found) == len(ids):
                            break
        return found


@contextmanager
def _available() -> Iterator[None]:
    """Run a block that uses the message broker; if the broker fails, show the user an error page (503)."""
    try:
        yield
    except (Unavailable, BrokerRefused) as problem:
        raise PageRefused(503, "The bus does not answer", f"{problem}.") from None


SECONDS = 2.0
_COUNT_TIMES = 10.0  # counting takes at most a tenth of the time: many queues are counted less often


class BusPages(PageGroup):
    """Shows topics and queue depths."""

    def __init__(self, context: PageContext, renderer: Renderer) -> None:
        super().__init__(context, renderer)
        self._updates = PageUpdates(SECONDS)
        self._loads = SharedData(context.tasks, self._count, seconds=SECONDS * 0.9, times=_COUNT_TIMES)
        self._last: Reply[BusLoad] = Reply("the bus")

    async def page(self, request: Request) -> Response:
        topic = request.query_params.get("topic", "")
        counted = await soon(request, self._counted())
        part = self._part(topic, counted or self._last)
        return self._renderer.page(request, "bus.html", part=part, topic=topic)

    async def events(self, request: Request) -> Response:
        topic = request.query_params.get("topic", "")

        async def part() -> str:
            return self._part(topic, await self._counted())

        return self._updates.stream(request, part)

    def _part(self, topic: str, counted: Reply[BusLoad]) -> str:
        return self._renderer.part(
            "bus_part.html",
            bus=counted.answer,
            problem=counted.problem,
            topic=counted.answer.topic(topic) if counted.answer else None,
            elsewhere=self._context.operations.bus.elsewhere,
        )

    async def _counted(self) -> Reply[BusLoad]:
        return await self._loads.get(tuple(await self._context.status.cells()))

    async def _count(self, cells: tuple[str, ...]) -> Reply[BusLoad]:
        context, operations = self._context, self._context.operations.bus
        agents = context.events.heartbeats.agents(context.clock.now())
        try:
            queues = await operations.queues(cells, [(agent.cell, agent.agent) for agent in agents])
            depths = await operations.transport.depths([queue.name for queue in queues])
            self._last = Reply("the bus", bus_load(queues, depths))
        except (Unavailable, BrokerRefused) as problem:
            self._last = Reply("the bus", self._last.answer, str(problem))
        return self._last
