"""A control room whose pages are requested without a network, with the needed part of a berth."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self
from unittest.mock import patch

import httpx
from jinja2 import BytecodeCache, Environment
from jinja2.bccache import Bucket

from berth import composition
from berth.control_room_setup import opened_pages
from berth.features import messages
from berth.settings import Settings
from bus.clock import Clock
from bus.delivery.runner import Bus, PendingQuestions
from bus.errors import NoAnswer, Unroutable
from bus.local import LocalBroker, LocalTransport
from bus.topics import Query
from bus.worker import Worker
from control_room.kit import frame, refresh
from control_room.kit.queries import Queries
from control_room.kit.shared_data import BackgroundTasks
from control_room.pages.app import pages_app
from control_room.worker import Events, control_room
from tests.support.buses import serving

HTML = {"accept": "text/html"}


class SetClock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.passed = 1000.0
        self.clock = Clock(now=lambda: self.now, monotonic=lambda: self.passed)


@dataclass
class VisitedRoom:
    browser: httpx.AsyncClient
    events: Events
    tasks: BackgroundTasks
    bus: Bus
    app: Any
    clock: SetClock

    def open_streams(self) -> int:
        return sum(map(len, self.app.state.sessions._streams.values()))

    def end_streams(self) -> None:
        self.app.state.sessions.close()

    async def page(self, path: str, status: int = 200) -> str:
        answer = await self.browser.get(path, headers=HTML)
        assert answer.status_code == status, answer.text
        return answer.text

    async def form_token(self) -> str:
        page = (await self.browser.get("/login", headers=HTML)).text
        found = re.search(r'name="form_token" value="(\w+)"', page)
        return found[1] if found else ""

    async def send(self, path: str, *, headers: dict[str, str] | None = None, **given: str) -> httpx.Response:
        """Post a form with its form token, as a page of the control room does."""
        given = {"form_token": await self.form_token(), **given}
        return await self.browser.post(path, data=given, headers={**HTML, **(headers or {})})

    @asynccontextmanager
    async def following(self, path: str) -> AsyncIterator[list[str]]:
        sent = list[str]()

        async def watched(scope: Any, receive: Any, send: Any) -> None:
            async def say(message: Any) -> None:
                await send(message)
                sent.append(message.get("body", b"").decode())

            await self.app(scope, receive, say)

        way = httpx.ASGITransport(watched)
        async with (
            httpx.AsyncClient(transport=way, base_url=self.browser.base_url) as visitor,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(visitor.get(path))
            yield sent
            self.end_streams()

    async def sign_in(self, token: str = "", **fields: str) -> httpx.Response:
        return await self.send("/login", headers={}, **(fields or {"token": token}))

    @asynccontextmanager
    async def visitor(self, address: str = "10.0.0.1", url: str = "") -> AsyncIterator[Self]:
        """Yield the same control room with another browser, which has no session."""
        transport = httpx.ASGITransport(self.app, client=(address, 1234))
        async with httpx.AsyncClient(transport=transport, base_url=url or self.browser.base_url) as browser:
            yield replace(self, browser=browser)


async def nobody(_: Any) -> Any:
    raise Unroutable("no queue")


def _telling(answer: Any) -> Callable[[Any], Awaitable[Any]]:
    async def say(_: Any) -> Any:
        return answer

    return answer if callable(answer) else say


def queries_with(bus: Bus, answered: Collection[str], answers: Mapping[str, Any]) -> Queries:
    """Return queries: the names in `answered` use the bus, `answers` has fixed answers, the others fail. The
    queries of features have their names on the bus.
    """
    queries = Queries(bus)
    own = queries.asker
    for name in vars(queries):
        if name in answers:
            setattr(queries, name, _telling(answers[name]))
        elif name not in answered and name != "bus":
            setattr(queries, name, nobody)

    def asker(query: Query[Any, Any], **options: Any) -> Callable[[Any], Awaitable[Any]]:
        if query.name in answers:
            return _telling(answers[query.name])
        return own(query, **options) if query.name in answered else nobody

    setattr(queries, "asker", asker)  # noqa: B010
    return queries


class _CompiledTemplates(BytecodeCache):
    """Keeps compiled templates for the rooms of all tests of a process."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._kept.get(bucket.checksum)

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._kept[bucket.checksum] = bucket.code


_COMPILED = _CompiledTemplates()


@contextmanager
def _without_waiting_for_others(workers: Sequence[Worker]) -> Iterator[None]:
    """Make queries that none of these workers answers fail at once, as they do after their time limit."""
    answered = {row.query.name for worker in workers for row in worker.answers}
    ask = PendingQuestions.ask

    async def ask_running(self: Any, query: Query[Any, Any], *arguments: Any) -> Any:
        if query.name not in answered:
            raise NoAnswer(f"{query.name}: no worker runs that answers it")
        return await ask(self, query, *arguments)

    with patch.object(PendingQuestions, "ask", ask_running):
        yield


@asynccontextmanager
async def a_visited_room(
    *workers: Worker,
    answered: Collection[str] = (),
    sent: Mapping[str, Any] | None = None,
    settings: Settings | None = None,
    patience: float = 30.0,
) -> AsyncIterator[VisitedRoom]:
    """Run a control room whose pages wait up to `patience` seconds for their data, but do not wait for
    answers of workers that do not run.
    """
    broker, set_clock = LocalBroker(), SetClock()
    events = Events(set_clock.clock, [topic for part in messages() for topic in part.page_events])
    settings = settings or Settings().having(cells=("c1",))
    async with serving(lambda: LocalTransport(broker), control_room(events), *workers) as bus:
        queries = queries_with(bus, answered, sent or {})
        tables = composition.queues, composition.agent_queues
        with (
            patch.object(refresh, "PATIENCE", patience),
            patch.object(frame, "Environment", partial(Environment, bytecode_cache=_COMPILED)),
            _without_waiting_for_others(workers),
        ):
            async with opened_pages(settings, bus, queries, events, tables) as context:
                app = pages_app(context)
                way = httpx.ASGITransport(app)
                async with httpx.AsyncClient(transport=way, base_url="http://127.0.0.1:8780") as browser:
                    yield VisitedRoom(browser, events, context.tasks, bus, app, set_clock)
