"""The page that shows how many instances of a mix of flavors would fit. Nothing is claimed."""

import asyncio
import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlencode
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.responses import Response

from bus.http import origin_of
from control_room.kit import (
    NO_ANSWER,
    AddedPages,
    KnownHost,
    PageContext,
    PageGroup,
    PagePart,
    PageUpdates,
    Renderer,
    SharedData,
    known_hosts,
    live,
    session_of,
    soon,
    split_words,
)
from features.capacity_plans.core.plan_form import MOST_NAME, InvalidPlan, parse_plan
from features.capacity_plans.core.planning import PlanAnswer, planned
from features.capacity_plans.plan_additions import completed

SECONDS = 3600.0  # age up to which an answer is shown without computing it again
HOSTS_SECONDS = 5.0  # age up to which hosts read from placement are used
LONGEST = 30.0  # seconds that a plan may take
USUAL = "3 x VCPU:2,MEMORY_MB:4096,DISK_GB:20\n1 x VCPU:8,MEMORY_MB:16384,DISK_GB:80"
_FIELDS = ("mix", "add", "without", "zone", "cell", "project")


@dataclass(frozen=True)
class PlanResult:
    answer: PlanAnswer | None = None
    problems: Sequence[str] = ()


@dataclass(frozen=True)
class _PlanQuery:
    """A what-if question about a mix of flavors, as a URL query.

    `reader` is the user that asks or, without sign-in, the IP address.
    """

    text: str
    reader: Hashable = field(compare=False)


def make(context: PageContext, renderer: Renderer) -> AddedPages:
    pages = CapacityPages(context, renderer)
    return AddedPages(routes=live("/what-if/capacity", pages))


class CapacityPages(PageGroup):
    """The page that shows how many instances of a mix of flavors fit; computes one answer at a time."""

    def __init__(self, context: PageContext, renderer: Renderer) -> None:
        super().__init__(context, renderer)
        self._updates = PageUpdates(SECONDS)
        self._plans = SharedData(context.tasks, self._plan)
        queries = context.queries
        self._hosts: SharedData[None, Sequence[KnownHost]] = SharedData(
            context.tasks,
            lambda _: known_hosts(queries.trees, queries.aggregates, queries.cells),
            seconds=HOSTS_SECONDS,
        )
        self._planning = asyncio.Lock()
        self._of_reader: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    async def page(self, request: Request) -> Response:
        fields = _fields(request)
        query = _query(request)
        result = await soon(request, self._plans.get(query)) if query.text else PlanResult()
        return self._renderer.page(
            request,
            "capacity.html",
            fields=fields,
            usual=USUAL,
            part=self._part(result, query.text),
            query="" if result else query.text,
        )

    async def events(self, request: Request) -> Response:
        """Return an event stream that sends an open page the number of instances that fit, once computed."""

        async def part() -> str:
            return self._part(await self._plans.get(_query(request)), "")

        return self._updates.stream(request, part)

    def _part(self, result: PlanResult | None, query: str) -> str:
        answer = result.answer if result else None
        return self._renderer.part(
            "capacity_part.html",
            query="" if result else query,
            problems=result.problems if result else (),
            answer=answer,
            fragments=(answer.then or answer.now) if answer else None,
        )

    async def _plan(self, query: _PlanQuery) -> PlanResult:
        fields = {name: texts[0] for name, texts in parse_qs(query.text).items()}
        try:
            async with self._of_reader.setdefault(query.reader, asyncio.Lock()):
                return PlanResult(await self._planned(fields))
        except InvalidPlan as invalid:
            return PlanResult(problems=[f"{str(arg)[:1].upper()}{str(arg)[1:]}." for arg in invalid.args])
        except NO_ANSWER as problem:
            return PlanResult(problems=[f"Placement does not answer: {problem}."])

    async def _planned(self, fields: dict[str, str]) -> PlanAnswer:
        mix, add = (
            [line for line in fields.get(name, "").splitlines() if line.strip()] for name in ("mix", "add")
        )
        without = split_words(fields.get("without", ""))
        plan = parse_plan(mix, add, without, fields.get("zone", ""), fields.get("cell", ""))
        project = fields.get("project", "")
        if len(project) > MOST_NAME:
            raise InvalidPlan(f"the project has {MOST_NAME} characters at most")
        async with self._planning:
            hosts = await self._hosts.get(None)
            stop = threading.Event()
            try:
                async with asyncio.timeout(LONGEST):
                    answer = await asyncio.to_thread(planned, hosts, plan, stop.is_set)
            except TimeoutError:
                raise InvalidPlan(f"this plan takes longer than {LONGEST:g} s: plan with less") from None
            finally:
                stop.set()  # the thread would continue after a cancellation
        return await completed(self._context.queries.asker, answer, plan, project)


def _fields(request: Request) -> dict[str, str]:
    return {name: request.query_params.get(name, "").strip() for name in _FIELDS}


def _query(request: Request) -> _PlanQuery:
    text = urlencode({name: value for name, value in _fields(request).items() if value})
    return _PlanQuery(text, session_of(request).visitor or origin_of(request.scope))


PART = PagePart(make)
