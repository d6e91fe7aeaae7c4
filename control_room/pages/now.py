"""The home page: the list of problems and the state of the cloud, updated every two seconds while the page is
open.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from bus.host_health import not_up
from bus.problems import KnownProblem
from control_room.core.builds import percentiles, summed
from control_room.core.now import SHARES, AgentHeartbeat, TenMinutes, ten_minutes, workers
from control_room.kit.frame import PageContext, PageGroup, Renderer
from control_room.kit.refresh import PageUpdates, soon
from control_room.kit.shared_data import SharedData, UpdateInterval
from control_room.kit.words import duration
from control_room.queries import CloudStatus

SECONDS = 2.0
SOONEST = 0.17  # least seconds between updates while builds end: people cannot read faster
CAUSES = 8  # causes of failures that are shown
PROBLEM_SECONDS = 4.0  # age up to which the list of problems is used
OLDEST_PROBLEMS = 15.0  # age from which a page waits until the list is read again
PROBLEM_TIMES = 10.0  # the list is used for this multiple of the time that its read took
SHARE = 0.01  # share of a processor that updates may take while builds end all the time


class ReadProblems(NamedTuple):
    """The list of problems, and when it was read."""

    found: Sequence[KnownProblem]
    at: float


class NowPages(PageGroup):
    """Shows the first page: problems, figures of the last minutes, workers."""

    def __init__(self, context: PageContext, renderer: Renderer) -> None:
        super().__init__(context, renderer)
        changes = context.events.changes
        self._parts = SharedData(context.tasks, self._render, changes=changes, seconds=SECONDS * 0.9)
        self._updates = PageUpdates(SECONDS, changes, UpdateInterval(SHARE, SOONEST))
        self._ten_minutes: TenMinutes | None = None
        self._rendered = 0.0  # when the list of problems in the last rendered part was read
        read = context.operations.problems
        self._problems: SharedData[None, ReadProblems] = SharedData(
            context.tasks, lambda _: self._listed(read), seconds=PROBLEM_SECONDS, times=PROBLEM_TIMES
        )

    async def page(self, request: Request) -> Response:
        part = await soon(request, self._parts.get(None)) or self._recent_part()
        part = part or self._renderer.part("now_asked.html")
        return self._renderer.page(request, "now.html", part=part)

    async def events(self, request: Request) -> Response:
        return self._updates.stream(request, lambda: self._parts.get(None))

    def _recent_part(self) -> str | None:
        """Return the part that was rendered last, unless it is old: its list of problems may be wrong now."""
        is_old = self._context.clock.now() - self._rendered > OLDEST_PROBLEMS
        return None if is_old else self._parts.known(None)

    async def _render(self, _: None) -> str:
        status, problems = await asyncio.gather(self._context.status.status(), self._known_problems())
        self._rendered = problems.at
        with self._updates.interval.rendering():
            return self._renderer.part("now_part.html", problems=problems, **self._figures(status))

    async def _known_problems(self) -> ReadProblems:
        """Return the list of problems that was read last, and begin to read it again: other figures of an
        open page do not wait for workers that are silent. A list that was read long ago is not shown.
        """
        known = self._problems.known(None)
        if known is None or self._context.clock.now() - known.at > OLDEST_PROBLEMS:
            return await self._problems.get(None)
        self._problems.refresh(None)
        return known

    async def _listed(self, read: Callable[[], Awaitable[Sequence[KnownProblem]]]) -> ReadProblems:
        return ReadProblems(await read(), self._context.clock.now())

    def _figures(self, status: CloudStatus) -> dict[str, Any]:
        events, now = self._context.events, self._context.clock.now()
        history, agents = events.history, events.heartbeats.agents(now)
        past = self._ten_minutes = ten_minutes(history, now, self._ten_minutes)
        current = history.current(now)
        whole, minute = summed([past.whole, current]), summed([past.minute, current])
        p50, _, p99 = percentiles(minute.durations, SHARES)
        cells = list(self._cells(status, agents, now))
        waiting, building = status.waiting.answer, [cell["building"] for cell in cells]
        return {
            "rate_now": history.rate(now),
            "in_flight": None if None in building else sum(filter(None, building)),
            "waiting": waiting.count if waiting else None,
            "p50": duration(p50),
            "p99": duration(p99),
            "ended": whole.ends,
            "cells": cells,
            "speed": past.speed,
            "latency": past.latency,
            "causes": whole.causes.most_common(CAUSES),
            "host_failures": whole.host_failures,
            "workers": workers(status.replies, events.heartbeats.schedulers(now), agents, now),
            "now": now,
        }

    def _cells(
        self, status: CloudStatus, agents: Sequence[AgentHeartbeat], now: float
    ) -> Iterator[dict[str, Any]]:
        found, counts = status.cells.answer, status.counts
        enabled = {cell.name: cell.enabled for cell in found.cells} if found else {}
        states = status.health.answer.counts if status.health.answer else {}
        for name in self._context.status.cell_names(status):
            building = status.building.get(name)
            of_cell = [agent for agent in agents if agent.cell == name]
            yield {
                "name": name,
                "enabled": enabled.get(name, True),
                "hosts": counts.hosts.get(name, 0) if counts else 0,
                "instances": counts.instances.get(name, 0) if counts else 0,
                "building": building.answer.count if building and building.answer else None,
                "agents": len(of_cell),
                "closed": not_up(states.get(name, {})),
                "problem": building.problem if building else "",
            }
