"""The REST API of a region with two cells, whose workers have fixed answers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
from starlette.applications import Starlette

from berth.features import added, packages
from berth.kit.rest import RestPart
from berth.problems.kinds import WORKER_SILENT
from berth.rest.app import rest_app
from berth.rest.call import RestAccess
from berth.rest.ends import EndLog
from berth.rest.operations import RestOperations
from berth.rest.store import StoredRequest, accept
from berth.settings import Settings
from bus import topics
from bus.audit_trail import ActRecord, ActsRecorded
from bus.claims import Choice
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.messages import BuildPlaced, Selection
from bus.problems import KnownProblem
from bus.projects import BuildPlace, FindProjects, ProjectsFound
from bus.queries import BuildsFound, BuildStands, DecisionFound, FindBuilds, InstancesFound, WaitingFound
from bus.requests import BuildSpec, Flavor
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Message
from placement_worker.http.access import AccessPolicy, Identity, TokenChecker
from placement_worker.http.recording import RecordedRequests
from tests.support.feature_tests import modules_of_tests
from tests.support.ids import uid

# An instance of the project p1 in cell c1, a request that waits, and an instance of p2.
BUILD, WAITS, OTHER = uid(1, "b"), uid(7), uid(8)
TAKEN = uid(2, "f")  # the id of a server group of another project
STANDS = BuildStands(
    build=BUILD,
    status="active",
    placed=BuildPlaced(
        build=BUILD, request=BUILD, cell="c1", generation=1,
        chosen=Selection(root=uid(9), host="h1", agent="a1", choice=Choice({})),
        spec=BuildSpec(flavor=Flavor(name="vm", vcpus=1), project="p1"),
    ),
    host="h1",
)  # fmt: skip


def rest_of_features() -> list[Any]:
    """Return the module about its part of the REST API in the tests of each feature that has one. OPERATIONS
    are its operations as in `tests.contract.test_rest_roles`, ANSWERS the answers to its queries.
    """
    return [*modules_of_tests("support.rest")]


class TwoCellBus:
    """The bus of a region with cells c1 and c2."""

    clock = Clock()

    def __init__(self) -> None:
        self.published: list[Message] = []
        self.records: list[ActRecord] = []

    async def publish(self, *messages: Message) -> None:
        for message in messages:
            if isinstance(message, ActsRecorded):
                self.records += message.records
            else:
                self.published.append(message)

    def asker(self, query: Any, timeout: float = 0.0) -> Callable[[Any], Any]:
        answers: Mapping[Any, Callable[[Any], Message]] = {
            topics.PROJECTS: self._projects,
            topics.FIND_BUILDS: self._builds,
            topics.FIND_INSTANCES: lambda question: InstancesFound(instances=()),
            topics.WAITING: lambda question: WaitingFound(waiting=(), count=0),
            topics.DECISION: lambda question: DecisionFound(),
            **{query: answer for rest in rest_of_features() for query, answer in rest.ANSWERS.items()},
        }

        async def ask(question: Message) -> Message:
            return answers[query](question)

        return ask

    def _projects(self, question: FindProjects) -> ProjectsFound:
        place = BuildPlace(cell="c1", root=uid(9), host="h1")
        return ProjectsFound(
            projects={BUILD: "p1", WAITS: "p1", OTHER: "p2", TAKEN: ""}, places={BUILD: place, OTHER: place}
        )

    def _builds(self, question: FindBuilds) -> BuildsFound:
        found = question.cell == "c1" and BUILD in question.builds
        return BuildsFound(builds=(STANDS,) if found else ())


@dataclass
class RestRegion:
    cloud: TwoCellBus
    app: Starlette
    http: httpx.AsyncClient
    records: RecordedRequests
    ends: EndLog
    identities: dict[str, Identity] = field(default_factory=dict)

    async def send(self, identity: Identity, method: str, path: str, body: Any = None) -> httpx.Response:
        self.cloud.published.clear()
        self.identities["t"] = identity
        return await self.http.request(method, path, json=body, headers={"x-auth-token": "t"})

    async def recorded(self) -> list[ActRecord]:
        self.cloud.records.clear()
        await self.records.flush()
        return list(self.cloud.records)


class NamedTokens(TokenChecker):
    """Tokens with the given identities."""

    def __init__(self, identities: Mapping[str, Identity]) -> None:
        self._identities = identities

    async def __call__(self, headers: Mapping[str, str]) -> Identity | None:
        return await self.identity(headers.get("x-auth-token", ""))

    async def identity(self, token: str) -> Identity | None:
        return self._identities.get(token)


async def _one_problem() -> list[KnownProblem]:
    return [WORKER_SILENT.problem("conductor.c1", workers="conductor.c1")]


@asynccontextmanager
async def a_region(*, streams_end: bool = True, **rules: str) -> AsyncIterator[RestRegion]:
    cloud, identities = TwoCellBus(), dict[str, Identity]()

    database = Database("sqlite+aiosqlite://", inline=True)
    await migrate(database, *packages("rest"))
    async with database.write() as tx:
        await accept(tx, [StoredRequest(id=WAITS, project="p1", digest="d", builds=[WAITS])], 1.0)
    records = RecordedRequests(cloud.publish, cloud.clock, AccessPolicy(rules), "token file")
    ends_of = {kind: rule for part in added(RestPart, "rest") for kind, rule in part.ends.items()}
    ends = EndLog(database, cloud.clock, 60.0, 60.0, ends_of)
    if streams_end:
        ends.close()  # so that a stream ends after the existing events
    bus, settings = cast(Bus, cloud), Settings().having(cells=("c1", "c2"))
    api = RestOperations(bus, settings, database, ends, _one_problem)
    app = rest_app(api, RestAccess(NamedTokens(identities), records))
    transport = httpx.ASGITransport(app=app, client=("192.0.2.7", 1))
    working = asyncio.create_task(api.accepted.run())
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://berth") as http:
            yield RestRegion(cloud, app, http, records, ends, identities)
    finally:
        working.cancel()
        await database.close()


def a_body(**fields: Any) -> dict[str, Any]:
    build = Clock().uuid()
    flavor = {"name": "small", "vcpus": 1}
    return {"request": build, "instances": [build], "flavor": flavor, "project": "p1", "cell": "c1", **fields}


def a_caller(*roles: str, project: str = "ops", **limits: tuple[str, ...]) -> Identity:
    return Identity("ann", project, frozenset(roles), **cast(Any, limits))
