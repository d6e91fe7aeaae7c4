"""The page about preemption: the latest victims with their preemptors, and the budgets of projects."""

import asyncio
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from control_room.kit import (
    QUERY_SECONDS,
    AddedPages,
    BuildRecords,
    PageContext,
    PageGroup,
    PagePart,
    Renderer,
    Reply,
    live,
    live_data,
    query,
    soon,
)
from features.preemption.messages import (
    PREEMPTIONS,
    PRIORITIES,
    FindPreemptions,
    FindPriorities,
    PreemptionsFound,
    PrioritiesFound,
)

SECONDS = 2.0  # between two updates; builds that end cause one immediately
LATEST = 100  # victims on the page


@dataclass(frozen=True)
class PreemptionData:
    """The replies from which the page is made."""

    found: Reply[PreemptionsFound]
    classes: Reply[PrioritiesFound]


def make(context: PageContext, renderer: Renderer) -> AddedPages:
    pages = PreemptionPages(context, renderer)

    async def of_build(request: Request, records: BuildRecords) -> str:
        """List the preemptions by a build, and of it."""
        ask = context.queries.asker(PREEMPTIONS, timeout=QUERY_SECONDS)
        reply = await query("placement", ask, FindPreemptions(by=(records.id,), victims=(records.id,)))
        found = reply.answer.preemptions if reply.answer else ()
        return renderer.part(
            "build_preemptions.html", id=records.id, preemptions=found, problem=reply.problem
        )

    return AddedPages(routes=live("/preemptions", pages), sections={"build": of_build})


class PreemptionPages(PageGroup):
    """Shows preemptions and priority classes."""

    def __init__(self, context: PageContext, renderer: Renderer) -> None:
        super().__init__(context, renderer)
        self._data, self._updates = live_data(context, self._read, context.events.changes, SECONDS)

    async def page(self, request: Request) -> Response:
        part = await soon(request, self._data.get(None))
        return self._renderer.page(request, "preemptions.html", part=part or self._part(None))

    async def events(self, request: Request) -> Response:
        return self._updates.stream(request, lambda: self._data.latest(None))

    async def _read(self, _: None) -> str:
        ask = self._context.queries
        preemptions = ask.asker(PREEMPTIONS, timeout=QUERY_SECONDS)
        priorities = ask.asker(PRIORITIES, timeout=QUERY_SECONDS)
        data = await asyncio.gather(
            query("placement", preemptions, FindPreemptions(latest=LATEST)),
            query("the scheduler", priorities, FindPriorities()),
        )
        with self._data.interval.rendering():
            return self._part(PreemptionData(*data))

    def _part(self, data: PreemptionData | None) -> str:
        return self._renderer.part("preemptions_part.html", data=data, latest=LATEST)


PART = PagePart(make)
