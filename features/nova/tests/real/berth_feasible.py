"""The hosts that berth finds feasible for RequestSpecs of Nova: bridge, scheduler and placement."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from berth.kit import Settings, choice_policy
from berth.kit.testing import request_options
from berth.placement_http import placement_http
from bus import topics
from bus.candidates import SenselessQuery
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.local import LocalBroker, LocalTransport
from bus.messages import HostReported
from bus.sql.database import Database
from features.nova.bridge import bridge_parts
from features.nova.core.request_spec import decoded
from features.nova.core.translation import BridgeOptions, CannotJudge, NoSuchDestination, translated
from features.nova.databases import NovaDatabases
from features.nova.messages import HostsAsked
from features.nova.mirror import Mirror, MirrorQueries
from features.nova.selecting import HostSelection
from placement_worker.testing import Placement, placement_worker
from scheduler_worker.testing import Scheduler
from tests.support.placement_builders import a_placement
from tests.support.schedulers import scheduler_of

CELLS = ("cell1", "cell2", "cell3")


@dataclass
class FeasibleHosts:
    """A set of roots, and the reason why berth searched nothing, if it did not."""

    roots: frozenset[str]
    why: str = ""


class BerthOfNova:
    """A placement, the mirror of Nova's databases, and a scheduler for each set of settings."""

    def __init__(self, placement: Placement, databases: NovaDatabases, bus: Bus) -> None:
        self.placement = placement
        self._schedulers: list[Scheduler] = []
        self._bus = bus
        queries = MirrorQueries(
            cells=bus.asker(topics.CELLS), edit_cell=bus.asker(topics.EDIT_CELL),
            providers=bus.asker(topics.PROVIDERS), edit_owner=bus.asker(topics.EDIT_OWNER),
            aggregates=bus.asker(topics.AGGREGATES), edit_aggregate=bus.asker(topics.EDIT_AGGREGATE),
        )  # fmt: skip
        self.mirror = Mirror(databases, queries, self._report, bus.clock)

    def scheduler(self, settings: Settings) -> Scheduler:
        made = scheduler_of(
            self.placement, policy=choice_policy(settings), requests=request_options(settings)
        )
        self._schedulers.append(made)
        return made

    async def report(self) -> None:
        """Send the states of all hosts to the schedulers."""
        for host in self.mirror.cloud.hosts.values():
            cell = self.mirror.cloud.cells[host.cell].berth_name
            message = HostReported(
                cell=cell, agent="nova", sequence=1, run=host.root, period=1e6, partial=True,
                hosts=(host.state,),
            )  # fmt: skip
            await self._report(message)

    async def _report(self, *messages: HostReported) -> None:
        for scheduler in self._schedulers:
            for message in messages:
                await scheduler.handle(message)

    async def feasible(self, scheduler: Scheduler, primitive: Any) -> FeasibleHosts:
        """Return the hosts on which berth would place the request."""
        spec, clock = decoded(primitive), self._bus.clock
        assert spec.instance_uuid is not None
        try:
            asked = translated(
                spec, [spec.instance_uuid], self.mirror.cloud, BridgeOptions(), request=clock.uuid()
            )
        except (CannotJudge, NoSuchDestination) as why:
            return FeasibleHosts(frozenset(), str(why))
        question = asked.question
        if asked.group is not None:
            for part in bridge_parts(self._bus):
                question = await part.join_group(question, asked.group)
        if question.do == "check":
            return await self._checked(scheduler, question)
        return await self._found(scheduler, question)

    async def _checked(self, scheduler: Scheduler, question: HostsAsked) -> FeasibleHosts:
        [answer] = await HostSelection(scheduler, Database("sqlite+aiosqlite://")).answer_many([question])
        if answer.refused is not None:
            return FeasibleHosts(frozenset(), answer.refused.reason)
        return FeasibleHosts(frozenset({question.request.forced_host}))

    async def _found(self, scheduler: Scheduler, question: HostsAsked) -> FeasibleHosts:
        order = HostSelection(scheduler, Database("sqlite+aiosqlite://")).begin(question)
        [order] = await scheduler.prepare([order])
        if order.verdict.invalid:
            return FeasibleHosts(frozenset(), order.verdict.invalid)
        roots: set[str] = set()
        for alternative in order.alternatives:
            try:
                found = scheduler.choosing().find(alternative)
            except SenselessQuery as problem:
                return FeasibleHosts(frozenset(), str(problem))
            roots |= {
                found.host(index).uuid for index in found.passing.tolist() if found.way(index) is not None
            }
        return FeasibleHosts(frozenset(roots))


@asynccontextmanager
async def a_berth_of_nova(databases: NovaDatabases, address: str, clock: Clock) -> AsyncIterator[BerthOfNova]:
    """Run a placement with its HTTP API at the address."""
    stopping = asyncio.Event()
    async with (
        a_placement("sqlite+aiosqlite://", clock) as placement,
        Bus(LocalTransport(LocalBroker())) as bus,
        asyncio.TaskGroup() as group,
    ):
        worker = placement_worker(placement, bus.publish, tuple(CELLS))
        http = placement_http(placement, Settings().having(placement_http=address), bus.publish)
        group.create_task(bus.serve(replace(worker, runs=[*worker.runs, http]), stopping))
        try:
            yield BerthOfNova(placement, databases, bus)
        finally:
            stopping.set()
