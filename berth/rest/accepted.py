"""Stores accepted requests, and finds the projects of requests, builds and moves. Concurrent calls share
queries and transactions.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence

from msgspec import structs

from berth.rest import store
from berth.rest.store import IdTaken, StoredRequest
from bus import topics
from bus.acts import owners_query
from bus.delivery.runner import Bus
from bus.projects import FindProjects, ProjectsFound
from bus.sql.database import Database
from bus.sql.failures import retrying
from bus.vocabulary import Message, portions
from placement_worker.transactions import Batched

IDS_ASKED = 10_000  # in one query for projects


class AcceptedRequests:
    """Stores requests and finds the projects of ids, while its task `run` is running."""

    def __init__(self, bus: Bus, database: Database) -> None:
        self._bus = bus
        self._database = database
        self._finding = Batched(self._find_many)
        self._adding = Batched(self._add_many)
        self._store = retrying(bus.clock)(self._store_once)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._finding.run())
            group.create_task(self._adding.run())

    async def projects(self, new: Collection[str], existing: Collection[str]) -> Mapping[str, str]:
        """Return the project of each id in `new` (of requests to accept) and `existing` (of builds) that any
        worker has recorded; ids of concurrent calls may be in the result, too.

        A call with `existing` ids queries the cells, which may be slow, so it is not combined with others.
        """
        return await (self._find(new, existing) if existing else self._finding(new))

    async def judged(self, messages: Sequence[Message]) -> ProjectsFound:
        """Return the owners and places of all ids in messages that change something. The records of the
        other workers outrank those of this database, which only prove that a request was accepted.
        """
        question = owners_query(messages)
        if question is None:
            return ProjectsFound()
        found = await self._bus.asker(topics.PROJECTS)(question)
        async with self._database.read_single() as tx:
            accepted = await store.projects_of(tx, {*question.new, *question.existing})
        return structs.replace(found, projects={**accepted, **found.projects})

    async def add(self, rows: Sequence[StoredRequest]) -> None:
        """Store all requests; if an id is in use by another request, store no request and raise IdTaken."""
        if (taken := await self._adding(rows)) is not None:
            raise taken

    async def _find_many(self, calls: Sequence[Collection[str]]) -> Sequence[dict[str, str]]:
        return [await self._find({id_ for ids in calls for id_ in ids}, ())] * len(calls)

    async def _find(self, new: Collection[str], existing: Collection[str]) -> dict[str, str]:
        async with self._database.read_single() as tx:
            known = await store.projects_of(tx, {*new, *existing})
        find = self._bus.asker(topics.PROJECTS)
        for some in portions(sorted({*new} - known.keys()), IDS_ASKED):
            known |= (await find(FindProjects(new=some))).projects
        if missing := tuple(sorted({*existing} - known.keys())):
            known |= (await find(FindProjects(existing=missing))).projects
        return known

    async def _add_many(self, calls: Sequence[Sequence[StoredRequest]]) -> Sequence[IdTaken | None]:
        try:
            await self._store([row for rows in calls for row in rows])
        except IdTaken as taken:
            if len(calls) == 1:
                return [taken]
            return [(await self._add_many([rows]))[0] for rows in calls]
        return [None] * len(calls)

    async def _store_once(self, rows: Sequence[StoredRequest]) -> None:
        async with self._database.write() as tx:
            await store.accept(tx, rows, self._bus.clock.now())
