"""The REST API and the table of docs/roles.md: what each role may do with each operation, and its records."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from berth.rest import app as rest_module
from berth.rest.app import handlers
from bus.acts import BY_NAME, RANK, act_of
from bus.audit_trail import Role
from bus.messages import BuildDeleteRequested, BuildRequested
from placement_worker.http.access import Identity
from tests.support.http_placement import a_stream
from tests.support.rest_region import BUILD, OTHER, WAITS, a_body, a_caller, a_region, rest_of_features
from tests.support.waiting import in_time, until

# Operation → its act, its URL, and its body. All concern the project p1 in cell c1.
OPERATIONS: dict[tuple[str, str], tuple[str, str, Callable[[], Any]]] = {
    ("/v1/requests", "POST"): ("boot", "/v1/requests", a_body),
    ("/v1/requests/batch", "POST"): ("boot", "/v1/requests/batch", lambda: {"requests": [a_body()]}),
    ("/v1/requests/{id}", "GET"): ("read", f"/v1/requests/{WAITS}", lambda: None),
    ("/v1/builds", "GET"): ("read", "/v1/builds?project=p1", lambda: None),
    ("/v1/builds/{id}", "GET"): ("read", f"/v1/builds/{BUILD}", lambda: None),
    ("/v1/builds/{id}", "DELETE"): ("delete", f"/v1/builds/{BUILD}", lambda: None),
    ("/v1/events", "GET"): ("read", "/v1/events?project=p1", lambda: None),
    ("/v1/events/stream", "GET"): ("read", "/v1/events/stream?project=p1", lambda: None),
    ("/v1/problems", "GET"): ("read", "/v1/problems", lambda: None),
    **{key: row for rest in rest_of_features() for key, row in rest.OPERATIONS.items()},
}


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
    assert OPERATIONS.keys() == handlers().keys()


@pytest.mark.parametrize(("identity", "role", "is_member"), CALLERS.values(), ids=CALLERS.keys())
async def test_a_caller_may_do_what_the_table_says(identity: Identity, role: Role, is_member: bool) -> None:
    async with a_region() as region:
        for (pattern, method), (act, url, body) in OPERATIONS.items():
            response = await region.send(identity, method, url, body())
            status, records = response.status_code, await region.recorded()
            expected = may(act, identity, role, is_member)
            if pattern == "/v1/problems":  # of the whole berth, and of no project
                expected = bool(role) and not identity.projects
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
        response = await in_time(stream)
        assert response.status_code == 200


async def test_a_limited_role_deletes_in_the_cell_of_the_instance() -> None:
    async with a_region() as region:
        of_c1 = a_caller("operator", cells=("c1",))
        assert (await region.send(of_c1, "DELETE", f"/v1/builds/{WAITS}")).status_code == 403  # cancels it
        assert (await region.send(of_c1, "DELETE", f"/v1/builds/{BUILD}")).status_code == 202
        (order,) = region.cloud.published
        assert isinstance(order, BuildDeleteRequested)
        assert (order.build, order.cell) == (BUILD, "c1")


async def test_the_list_of_problems_has_the_sentence_and_the_next_command_of_each() -> None:
    async with a_region() as region:
        answer = await region.send(a_caller("reader"), "GET", "/v1/problems")
        [problem] = answer.json()["problems"]
        assert problem["kind"] == "worker-silent"
        assert problem["says"] == "No answer from conductor.c1."
        assert problem["do"] and problem["consequence"]


async def test_a_request_without_a_project_is_of_the_project_of_the_token() -> None:
    async with a_region() as region:
        body = a_body()
        del body["project"]
        assert (await region.send(a_caller("member", project="p1"), "POST", "/v1/requests", body)).is_success
        (published,) = region.cloud.published
        assert isinstance(published, BuildRequested)
        assert published.project == "p1"


async def test_fields_that_are_not_known_are_notes_of_the_answer_and_of_the_request() -> None:
    async with a_region() as region:
        answer = await region.send(a_caller("operator"), "POST", "/v1/requests", a_body(zoone="a"))
        (published,) = region.cloud.published
        assert isinstance(published, BuildRequested)
        assert "zoone: not known here; did you mean zone?" in published.unknown_fields
        assert answer.json()["notes"][:1] == [*published.unknown_fields]
        batch = {"requests": [a_body(), a_body(zoone="a", strict=True)]}
        refused = await region.send(a_caller("operator"), "POST", "/v1/requests/batch", batch)
        assert refused.status_code == 400 and "requests[1].zoone: not known here" in refused.text
