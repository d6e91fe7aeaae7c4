"""Stores accepted requests, and finds the projects of requests, builds and moves. Concurrent calls share
queries and transactions.
"""

import asyncio
from collections.abc import Sequence

from msgspec import structs

from berth.rest import store
from berth.rest.store import IdTaken, StoredRequest
from bus import topics
from bus.acts import owners_query
from bus.delivery.runner import Bus
from bus.projects import BuildPlace, FindProjects, ProjectsFound
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
        """Store accepted requests in batches, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._finding.run())
            group.create_task(self._adding.run())

    async def project(self, id_: str) -> str:
        """Return the project of a request or build; "" if no worker has recorded it."""
        async with self._database.read_single() as tx:
            accepted = await store.projects_of(tx, (id_,))
        found = accepted or (await self._bus.asker(topics.PROJECTS)(FindProjects(existing=(id_,)))).projects
        return found.get(id_, "")

    async def owners(self, messages: Sequence[Message], *, places: bool = True) -> ProjectsFound:
        """Return the owners, and the places, of all ids in messages that change something; ids of concurrent
        calls may be in the result, too.

        A query for places or existing ids may be slow, so it is not combined with others.
        """
        question = owners_query(messages, places=places)
        if question is None:
            return ProjectsFound()
        return await (self._find(question) if places or question.existing else self._finding(question))

    async def add(self, rows: Sequence[StoredRequest]) -> None:
        """Store all requests; if an id is in use by another request, store no request and raise IdTaken."""
        if (taken := await self._adding(rows)) is not None:
            raise taken

    async def _find_many(self, questions: Sequence[FindProjects]) -> Sequence[ProjectsFound]:
        new = {id_ for question in questions for id_ in question.new}
        return [await self._find(FindProjects(new=tuple(sorted(new))))] * len(questions)

    async def _find(self, question: FindProjects) -> ProjectsFound:
        """Find owners. The records of the other workers outrank those of this database, which only prove that
        a request was accepted.
        """
        async with self._database.read_single() as tx:
            projects = await store.projects_of(tx, {*question.new, *question.existing})
        places, find = dict[str, BuildPlace](), self._bus.asker(topics.PROJECTS)
        asked = [
            structs.replace(question, new=some, existing=()) for some in portions(question.new, IDS_ASKED)
        ]
        if question.existing:
            asked.append(structs.replace(question, new=()))
        for some in asked:
            found = await find(some)
            projects |= found.projects
            places |= found.places
        return ProjectsFound(projects=projects, places=places)

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
