"""The REST API and the table of docs/roles.md: what each role may do with each operation, and its records."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers

from berth.databases import packages
from berth.rest import app as rest_module
from berth.rest.app import HANDLERS, RestAccess, rest_app
from berth.rest.door import RestDoor
from berth.rest.ends import EndLog
from berth.rest.store import StoredRequest, accept
from berth.settings import Settings
from bus import topics
from bus.acts import BY_NAME, RANK, act_of
from bus.audit_trail import ActRecord, ActsRecorded, Role
from bus.clients import BuildPlace, FindProjects, ProjectsFound
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.messages import BuildDeleteRequested, BuildRequested
from bus.queries import BuildsFound, DecisionFound, FindBuilds, InstancesFound, WaitingFound
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Message
from features.moves.messages import FIND_MOVES, FindMoves, MoveRequested, MovesFound, MoveStands
from features.tests.contract.test_client_door import a_stands
from placement_worker.http.access import AccessPolicy, Identity
from placement_worker.http.app import without_token
from placement_worker.http.recording import RecordedRequests
from tests.support.http_placement import a_stream
from tests.support.ids import uid
from tests.support.waiting import until

# An instance of the project p1 in cell c1 with a move, a request that waits, and an instance of p2.
BUILD, MOVE, WAITS, OTHER = uid(1, "b"), uid(1, "d"), uid(7), uid(8)
TAKEN = uid(2, "f")  # the id of a server group of another project


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
            FIND_MOVES: self._moves,
            topics.FIND_INSTANCES: lambda question: InstancesFound(instances=()),
            topics.WAITING: lambda question: WaitingFound(waiting=(), count=0),
            topics.DECISION: lambda question: DecisionFound(),
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
        return BuildsFound(builds=(a_stands(BUILD),) if found else ())

    def _moves(self, question: FindMoves) -> MovesFound:
        move = MoveStands(move=MOVE, build=BUILD, kind="resize", cell="c1", phase="verify")
        return MovesFound(moves=(move,) if question.cell == "c1" and MOVE in question.moves else ())


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


@asynccontextmanager
async def a_region(*, streams_end: bool = True, **rules: str) -> AsyncIterator[RestRegion]:
    cloud, identities = TwoCellBus(), dict[str, Identity]()

    async def authenticate(headers: Mapping[str, str]) -> Identity | None:
        return identities.get(Headers(headers).get("x-auth-token", ""))

    database = Database("sqlite+aiosqlite://", inline=True)
    await migrate(database, *packages("rest"))
    async with database.write() as tx:
        await accept(tx, [StoredRequest(id=WAITS, project="p1", digest="d", builds=[WAITS])], 1.0)
    records = RecordedRequests(cloud.publish, cloud.clock, AccessPolicy(rules), "token file")
    ends = EndLog(database, cloud.clock, 60.0, 60.0)
    if streams_end:
        ends.close()  # so that a stream ends after the existing events
    bus, settings = cast(Bus, cloud), Settings().having(cells=("c1", "c2"))
    door = RestDoor(bus, settings, database, ends)
    app = rest_app(door, RestAccess(authenticate, without_token, records))
    transport = httpx.ASGITransport(app=app, client=("192.0.2.7", 1))
    working = asyncio.create_task(door.accepted.run())
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


def a_move(**fields: Any) -> dict[str, Any]:
    return {"move": Clock().uuid(), "build": BUILD, "kind": "migrate", **fields}


# Operation → its act, its URL, and its body. All concern the project p1 in cell c1.
OPERATIONS: dict[tuple[str, str], tuple[str, str, Callable[[], Any]]] = {
    ("/v1/requests", "POST"): ("boot", "/v1/requests", a_body),
    ("/v1/requests/batch", "POST"): ("boot", "/v1/requests/batch", lambda: {"requests": [a_body()]}),
    ("/v1/requests/{id}", "GET"): ("read", f"/v1/requests/{WAITS}", lambda: None),
    ("/v1/builds", "GET"): ("read", "/v1/builds?project=p1", lambda: None),
    ("/v1/builds/{id}", "GET"): ("read", f"/v1/builds/{BUILD}", lambda: None),
    ("/v1/builds/{id}", "DELETE"): ("delete", f"/v1/builds/{BUILD}", lambda: None),
    ("/v1/moves", "POST"): ("move", "/v1/moves", a_move),
    ("/v1/moves/{id}", "GET"): ("read", f"/v1/moves/{MOVE}", lambda: None),
    ("/v1/moves/{id}/steer", "POST"): ("steer move", f"/v1/moves/{MOVE}/steer", lambda: {"to": "confirm"}),
    ("/v1/events", "GET"): ("read", "/v1/events?project=p1", lambda: None),
    ("/v1/events/stream", "GET"): ("read", "/v1/events/stream?project=p1", lambda: None),
}


def a_caller(*roles: str, project: str = "ops", **limits: tuple[str, ...]) -> Identity:
    return Identity("ann", project, frozenset(roles), **cast(Any, limits))


# Caller → its identity, its role in the table, and whether it is a member of p1.
CALLERS: dict[str, tuple[Identity, Role, bool]] = {
    "no role": (a_caller(project="p1"), "", False),
    "reader": (a_caller("reader"), "reader", False),
    "service": (a_caller("service"), "reader", False),
    "operator": (a_caller("operator"), "operator", False),
    "admin": (a_caller("admin"), "admin", False),
    "member": (a_caller("member", project="p1"), "", True),
    "member of another project": (a_caller("member", project="p2"), "", False),
    "member of another project, and reader": (a_caller("member", "reader", project="p2"), "reader", False),
    "member limited to another cell": (a_caller("member", project="p1", cells=("c2",)), "", False),
    "member and operator of another cell": (
        a_caller("member", "operator", project="p1", cells=("c2",)), "operator", False,
    ),
    "reader of cell c1": (a_caller("reader", cells=("c1",)), "reader", False),
    "reader of project p1": (a_caller("reader", projects=("p1",)), "reader", False),
    "reader of project p2": (a_caller("reader", projects=("p2",)), "reader", False),
    "operator of cell c1": (a_caller("operator", cells=("c1",)), "operator", False),
    "operator of cell c2": (a_caller("operator", cells=("c2",)), "operator", False),
    "operator of project p1": (a_caller("operator", projects=("p1",)), "operator", False),
    "operator of project p2": (a_caller("operator", projects=("p2",)), "operator", False),
}  # fmt: skip


def may(act: str, identity: Identity, role: Role, is_member: bool) -> bool:
    """Return what the table says about an act on an object of p1 in c1."""
    row = BY_NAME[act]
    limits = [("cells", identity.cells, "c1"), ("projects", identity.projects, "p1")]
    in_limits = all(
        not given or name in row.open_to or (name in row.limited_by and of_object in given)
        for name, given, of_object in limits
    )
    return is_member or (RANK[role] >= RANK[row.role] and in_limits)


async def test_streams_of_one_user_leave_connections_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_module, "STREAMS", 2)
    async with a_region(streams_end=False) as region:
        path, ann = "/v1/events/stream", a_caller("reader", projects=("p1",))
        region.identities |= {"admin": ann, "bob": Identity("bob", "p1", frozenset(("reader",)))}
        async with AsyncExitStack() as stack:
            for _ in range(2):
                stream = await stack.enter_async_context(a_stream(region, path, "project=p1"))
                assert stream.status == 200
            refused = await region.send(ann, "GET", f"{path}?project=p1")
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert "a user may have 2 streams of events at the same time" in refused.text
            assert (await region.send(ann, "GET", f"/v1/requests/{WAITS}")).status_code == 200
            other = a_stream(region, path, "project=p1", x_auth_token="bob")
            assert (await stack.enter_async_context(other)).status == 200
        async with a_stream(region, path, "project=p1") as stream:
            assert stream.status == 200, "the others have ended"
        region.ends.close()


async def test_waiting_requests_of_one_user_leave_connections_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rest_module, "WAITS", 1)
    async with a_region(streams_end=False) as region, asyncio.TaskGroup() as group:
        url, ann = f"/v1/requests/{WAITS}", a_caller("reader")
        both = [group.create_task(region.send(ann, "GET", f"{url}?wait=300")) for _ in range(2)]
        (refused,), (waiting,) = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        assert refused.result().status_code == 429
        assert "a user may have 1 requests that wait" in refused.result().text
        assert (await region.send(ann, "GET", url)).status_code == 200
        waiting.cancel()


def test_every_operation_has_a_row() -> None:
    assert OPERATIONS.keys() == HANDLERS.keys()


@pytest.mark.parametrize(("identity", "role", "is_member"), CALLERS.values(), ids=CALLERS.keys())
async def test_a_caller_may_do_what_the_table_says(identity: Identity, role: Role, is_member: bool) -> None:
    async with a_region() as region:
        for (pattern, method), (act, url, body) in OPERATIONS.items():
            response = await region.send(identity, method, url, body())
            status, records = response.status_code, await region.recorded()
            expected = may(act, identity, role, is_member)
            assert (status < 300) == expected, (method, pattern, response.text)
            found = [(record.through, record.outcome) for record in records]
            if not expected:
                hidden = () if may("read", identity, role, is_member) else (404,)
                assert status in (403, *hidden), (method, pattern, response.text)
                assert region.cloud.published == []
                if method != "GET":
                    assert found == [(f"{method} {pattern}", "denied")]
            elif act == "read":
                assert found == []
            else:
                assert found == [(f"{method} {pattern}", "done")]
                (message,) = region.cloud.published
                named = act_of(message)
                assert named is not None
                assert (records[0].act, RANK[named.role]) == (named.name, RANK[BY_NAME[act].role])


async def test_a_reader_of_a_project_without_a_role_reads_in_its_project_only() -> None:
    rules: Any = {"berth:reader": "role:auditor"}
    async with a_region(**rules) as region:
        reader = a_caller("reader", project="p1")
        assert (await region.send(reader, "GET", f"/v1/builds/{BUILD}")).status_code == 200
        assert (await region.send(reader, "GET", f"/v1/builds/{OTHER}")).status_code == 404
        assert (await region.send(reader, "GET", "/v1/builds?project=p2")).status_code == 403
        assert (await region.send(reader, "DELETE", f"/v1/builds/{BUILD}")).status_code == 403


async def test_a_stream_of_events_ends_after_its_token_is_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("berth.rest.app.BEAT_SECONDS", 0.01)
    async with a_region() as region:
        region.ends.is_closed = False
        member = a_caller("member", project="p1")
        stream = asyncio.create_task(region.send(member, "GET", "/v1/events/stream"))
        await until(lambda: "p1" in region.ends._watches)
        region.identities.clear()
        response = await asyncio.wait_for(stream, 10)
        assert response.status_code == 200


async def test_a_record_says_who_did_what_when_and_from_where() -> None:
    async with a_region() as region:
        member = a_caller("member", project="p1")
        batch = {"requests": [a_body(), a_body(instances=[uid(1, "e"), uid(2, "e")])]}
        response = await region.send(member, "POST", "/v1/requests/batch", batch)
        records = await region.recorded()
        ids = [build for each in batch["requests"] for build in each["instances"]]
        (first,) = records
        assert (first.target, first.asked) == (f"{ids[0]} and 2 more", json.dumps(ids, separators=(",", ":")))
        assert first.targets == tuple(ids)
        assert (first.operator.name, first.operator.role, first.operator.project) == ("ann", "", "p1")
        assert (first.operator.is_program, first.operator.known_by) == (True, "token file")
        assert (first.door, first.origin, first.act, first.project) == ("rest", "192.0.2.7", "boot", "p1")
        assert first.request == response.headers["x-openstack-request-id"]
        await region.send(a_caller("operator"), "POST", "/v1/moves", a_move(kind="resize", note="larger"))
        (record,) = await region.recorded()
        assert (record.operator.role, record.operator.is_program) == ("operator", False)
        assert (record.act, record.target, record.project) == ("move", BUILD, "p1")
        assert '"note":"larger"' in record.asked


async def test_refused_requests_and_invalid_tokens_are_recorded() -> None:
    async with a_region() as region:
        admin = a_caller("admin")
        await region.send(admin, "POST", "/v1/requests", a_body(request=WAITS))
        (taken,) = await region.recorded()
        assert (taken.act, taken.outcome, taken.detail) == (
            "boot", "refused", f"{WAITS} is the id of another request",
        )  # fmt: skip
        for _ in range(20):
            await region.http.get("/v1/builds", headers={"x-auth-token": "x"})
        records = await region.recorded()
        assert {(record.act, record.outcome) for record in records} == {("sign in", "denied")}
        assert len(records) < 10


FORBIDDEN = {
    "a host past the filters": ("/v1/requests", lambda: a_body(forced_host="h")),
    "the id of another project's instance": ("/v1/requests", lambda: a_body(project="p2", instances=[BUILD])),
    "an evacuation": ("/v1/moves", lambda: a_move(kind="evacuate")),
}


@pytest.mark.parametrize(("path", "body"), FORBIDDEN.values(), ids=FORBIDDEN.keys())
async def test_a_member_has_the_limits_of_a_client(path: str, body: Callable[[], Any]) -> None:
    async with a_region() as region:
        given = body()
        member = a_caller("member", project=given.get("project", "p1"))
        assert (await region.send(member, "POST", path, given)).status_code == 403
        assert region.cloud.published == []
        assert [record.outcome for record in await region.recorded()] == ["denied"]
        assert (await region.send(a_caller("operator"), "POST", path, body())).status_code == 202


async def test_the_id_of_a_move_is_not_the_id_of_an_instance_of_another_project() -> None:
    async with a_region() as region:
        member = a_caller("member", project="p1")
        for taken in (OTHER, TAKEN):
            assert (await region.send(member, "POST", "/v1/moves", a_move(move=taken))).status_code == 409
        for method in ("GET", "DELETE"):
            assert (await region.send(member, method, f"/v1/builds/{OTHER}")).status_code == 404


async def test_a_limited_role_acts_on_the_cell_of_the_instance_and_not_on_the_one_in_the_request() -> None:
    async with a_region() as region:
        of_c1, of_c2 = a_caller("operator", cells=("c1",)), a_caller("operator", cells=("c2",))
        assert (await region.send(of_c2, "POST", "/v1/moves", a_move(cell="c2"))).status_code == 403
        assert (await region.send(of_c1, "POST", "/v1/moves", a_move(to_cell="c2"))).status_code == 403
        assert (await region.send(of_c1, "DELETE", f"/v1/builds/{WAITS}")).status_code == 403  # cancels it
        assert (await region.send(of_c1, "DELETE", f"/v1/builds/{BUILD}")).status_code == 202
        (order,) = region.cloud.published
        assert isinstance(order, BuildDeleteRequested)
        assert (order.build, order.cell) == (BUILD, "c1")
        assert (await region.send(of_c1, "POST", "/v1/moves", a_move(cell="c2"))).status_code == 202
        (move,) = region.cloud.published
        assert isinstance(move, MoveRequested)
        assert (move.cell, move.source) == ("c1", uid(9))  # refused if it is elsewhere by then
        assert (await region.send(of_c1, "POST", "/v1/moves", a_move(source="h2"))).status_code == 403


async def test_a_limited_role_gives_no_id_that_is_in_use_to_a_new_object() -> None:
    async with a_region() as region:
        of_c1 = a_caller("operator", cells=("c1",))
        for taken in (TAKEN, WAITS):  # a server group, and a request that waits in no cell
            body = a_body(instances=[taken])
            assert (await region.send(of_c1, "POST", "/v1/requests", body)).status_code == 403
            assert (await region.send(of_c1, "POST", "/v1/moves", a_move(move=taken))).status_code == 403
        assert (await region.send(of_c1, "POST", "/v1/requests", a_body())).status_code == 202


async def test_a_request_without_a_project_is_of_the_project_of_the_token() -> None:
    async with a_region() as region:
        body = a_body()
        del body["project"]
        assert (await region.send(a_caller("member", project="p1"), "POST", "/v1/requests", body)).is_success
        (published,) = region.cloud.published
        assert isinstance(published, BuildRequested)
        assert published.project == "p1"
