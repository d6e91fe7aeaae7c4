"""Access of members to the objects of another project, as clients of the bus and over HTTP: for each field
that names an object, and for each query.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bus import parts, topics
from bus.clock import Clock
from bus.messages import BuildRequested
from bus.queries import FindWaiting
from bus.requests import Flavor
from bus.vocabulary import Message
from features.clients.messages import (
    CLIENT_ASKED,
    EDIT_CLIENT,
    ClientAnswered,
    ClientAsked,
    ClientEditRequested,
    ClientRequested,
    actions,
)
from features.groups.messages import EDIT_GROUP, GroupEditRequested, MakeGroup
from features.moves.messages import (
    FIND_MOVES,
    MOVE_ENDED,
    MOVE_PROGRESS,
    MOVE_REFUSED,
    FindMoves,
    MoveRequested,
)
from features.reservations.messages import (
    EDIT_RESERVATION,
    FILL_RESERVATION,
    FillReservation,
    MakeReservation,
    Reservation,
    ReservationEditRequested,
)
from tests.support.named_fields import text_fields
from tests.support.rest_berth import RestBerth, a_boot, a_rest_berth
from tests.support.waiting import in_time, until

SMALL = {"name": "small", "vcpus": 1, "memory_mb": 64, "disk_gb": 1}
ENDS = (
    topics.BUILD_ENDED, topics.BUILD_UNPLACEABLE, topics.BUILD_CANCELLED, topics.BUILD_DELETED, MOVE_ENDED,
    MOVE_PROGRESS, MOVE_REFUSED,
)  # fmt: skip
WHOSE = ("own", "another project's", "another project's, in another cell", "unknown")
NEW = ("request", "instances[]", "move")  # fields that give an id to a new object
# Text of a refusal → what refuses
REFUSERS = {
    "no build of this client's projects": "bus/acts.py: its owner",
    "no build or request": "berth/rest/operations.py: its owner",
    "use new uuids": "bus/acts.py: the id is in use",
    "is not bound to": "bus/acts.py: the project",
    "berth:member": "bus/acts.py: the project",
    "takes the role": "bus/acts.py: the project",
    "there is no server group": "features/groups/server_groups.py",
    "there is no reservation": "features/reservations/drawn_reservations.py",
    "no such move": "features/moves/messages.py: the cell's record",
    "no cell that answers has a move": "features/moves/rest.py: the cell's record",
}


def uuid() -> str:
    return Clock().uuid()


@dataclass
class ProjectOfMembers:
    """A project with an object of each kind, by kind."""

    name: str
    token: str
    objects: dict[str, str] = field(default_factory=dict)
    hosts: list[str] = field(default_factory=list)  # of its instances


@dataclass
class TwoProjects:
    berth: RestBerth
    http: httpx.AsyncClient  # with the token of a member of the project `web`
    web: ProjectOfMembers
    batch: ProjectOfMembers

    @property
    def bus(self) -> Any:
        return self.berth.running.bus

    async def outcome(self, do: str, message: dict[str, Any]) -> str:
        """Request an act as the client `shop`; return why it is refused, or "" if it is not."""
        reply_to = f"shop_{uuid()[:8]}"
        listeners = [await self.bus.listen(topic.at(reply_to=reply_to)) for topic in ENDS]
        asked = ClientRequested(client="shop", do=do, message=message | {"reply_to": reply_to})
        await self.bus.publish(asked)
        waiting = [asyncio.create_task(listener.get()) for listener in listeners]
        done, _ = await in_time(asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED))
        for task in waiting:
            task.cancel()
        end: Any = done.pop().result()
        await asyncio.gather(*(listener.stop() for listener in listeners))
        if getattr(end, "status", "active") == "active" and getattr(end, "known", True):
            return next((why for name in ("reason", "refused", "why") if (why := getattr(end, name, ""))), "")
        return str(getattr(end, "why", "") or getattr(end, "reason", "") or "refused")

    async def ask(self, query: str, message: dict[str, Any]) -> ClientAnswered:
        return await self.bus.asker(CLIENT_ASKED)(ClientAsked(client="shop", query=query, message=message))  # type: ignore[no-any-return]

    async def http_outcome(self, method: str, path: str, body: Any = None) -> str:
        response = await self.http.request(method, path, json=body)
        return "" if response.status_code < 300 else response.text

    async def new_build(self, project: ProjectOfMembers, cell: str = "c1", **fields: Any) -> str:
        boot = a_boot(uuid(), cell=cell, name=f"name of {project.name}", **fields)
        async with self.berth.client(project.token) as client:
            await client.boot(boot)
            ended = await client.ended(boot.request)
        assert ended.builds[0].status == "active", ended
        project.hosts.append(ended.builds[0].host)
        return boot.request

    async def fill(self, project: ProjectOfMembers, cell: str) -> None:
        group, reservation, name = uuid(), uuid(), f"thing of {project.name}"
        edit = MakeGroup(group=group, name=name, policy="soft-affinity", project=project.name)
        await self.bus.asker(EDIT_GROUP)(GroupEditRequested(edit=edit))
        made = Reservation(
            id=reservation, name=name, project=project.name, cell=cell, count=8,
            flavor=Flavor(name="small", vcpus=1, memory_mb=64, disk_gb=1),
        )  # fmt: skip
        await self.bus.asker(EDIT_RESERVATION)(
            ReservationEditRequested(edit=MakeReservation(reservation=made))
        )
        await self.bus.asker(FILL_RESERVATION)(FillReservation(reservation=reservation))
        waits = a_boot(uuid(), zone="nowhere", wait="1h", name=f"name of {project.name}")
        async with self.berth.client(project.token) as client:
            await client.boot(waits)
        moved, move = await self.new_build(project, cell), uuid()
        project.objects |= {
            "instance": await self.new_build(project, cell), "project": project.name, "server group": group,
            "reservation": reservation, "request": waits.request, "move": move, "moved": moved,
        }  # fmt: skip
        await self.bus.publish(MoveRequested(move=move, build=moved, kind="migrate", cell=cell, verify=True))

        async def is_done() -> bool:
            found = await self.bus.asker(FIND_MOVES)(FindMoves(cell=cell, moves=(move,)))
            waiting = await self.bus.asker(topics.WAITING)(FindWaiting(requests=(waits.request,)))
            return [each.phase for each in found.moves] == ["verify"] and bool(waiting.waiting)

        await until(is_done, f"the objects of {project.name} exist")


@asynccontextmanager
async def two_projects(directory: Path) -> AsyncIterator[TwoProjects]:
    async with a_rest_berth(directory) as berth:
        headers = {"x-auth-token": "token of ann"}
        async with httpx.AsyncClient(base_url=berth.url, headers=headers, timeout=60) as http:
            region = TwoProjects(
                berth, http, ProjectOfMembers("web", "ann"), ProjectOfMembers("batch", "bob")
            )
            edit = ClientEditRequested(client="shop", projects=("web",))
            await region.bus.asker(EDIT_CLIENT)(edit)
            await region.fill(region.web, "c1")
            await region.fill(region.batch, "c2")
            region.batch.objects["near"] = await region.new_build(region.batch, "c1")
            yield region


def with_value(message: dict[str, Any], path: str, value: str) -> dict[str, Any]:
    """Return a JSON object with a value at a path such as `parts.groups.members[]`."""
    name, _, rest = path.partition(".")
    plain = name.removesuffix("[]")
    inner: Any = with_value(message.get(plain, {}), rest, value) if rest else value
    return message | {plain: [inner] if name.endswith("[]") else inner}


def boot_of(region: TwoProjects, path: str) -> dict[str, Any]:
    boot: dict[str, Any] = {"request": uuid(), "instances": [uuid()], "flavor": SMALL, "cell": "c1"}
    if path == "parts.groups.members[]":
        boot["parts"] = {"groups": {"group": region.web.objects["server group"]}}
    return boot


async def message_of(region: TwoProjects, do: str, path: str, value: str, kind: str) -> dict[str, Any]:
    """Return a valid message of an action, with the value in a field."""
    if do == "boot":
        return with_value(boot_of(region, path), path, value)
    if do == "move":
        base = {"move": uuid(), "build": await region.new_build(region.web), "kind": "migrate", "cell": ""}
    elif do == "steer":
        own = region.web.objects
        base = {"move": own["move"], "build": own["moved"], "cell": "c1", "to": "abort"}
    else:
        base = {}
    return with_value(base, path, value)


def values_of(region: TwoProjects, kind: str, do: str, path: str) -> list[str | None]:
    """Return an own value, those of another project in the same and another cell, and an unknown value."""
    own, other = region.web.objects, region.batch.objects
    if kind == "instance":
        mine = own["moved"] if do == "steer" else own["instance"]
        return [mine, other["near"], other["instance"], uuid()]
    if kind == "project":
        return ["web", "batch", None, "nobody"]
    return [own[kind], other[kind], None, uuid()]


def refuser(why: str) -> str:
    if not why or "too late for that" in why:  # of an own move, in a phase that cannot be steered so
        return "**accepted**"
    return next((by for text, by in REFUSERS.items() if text in why), f"?? {why[:160]}")


MESSAGES: dict[str, type[Message]] = {action: kind.topic.message for action, kind in actions().items()}


async def rows_of_acts(region: TwoProjects) -> AsyncIterator[tuple[str, list[str]]]:
    for do, kind in MESSAGES.items():
        for named in text_fields(kind):
            if named.kind is None or named.kind.judged == "open":
                continue
            of = named.kind.name if named.kind.name != "request" or not named.is_new else "request"
            for door in ("bus", "REST"):
                found = []
                for whose, value in zip(WHOSE, values_of(region, of, do, named.path), strict=True):
                    if value is None or (named.is_new and whose == "own"):
                        found.append("")
                        continue
                    if do == "delete" and whose == "own":
                        value = await region.new_build(region.web)
                    why = await attempt(region, door, do, named.path, value, of)
                    found.append(why if why == "-" else refuser(why))
                yield f"`{kind.__name__}` `{named.path}` | {door}", found


async def attempt(region: TwoProjects, door: str, do: str, path: str, value: str, kind: str) -> str:
    message = await message_of(region, do, path, value, kind)
    if door == "bus":
        return await region.outcome(do, message)
    if do == "delete":
        return await region.http_outcome("DELETE", f"/v1/builds/{value}")
    if do == "steer":
        if path == "build":
            return "-"  # found by the id of the move
        return await region.http_outcome("POST", f"/v1/moves/{value}/steer", {"to": "abort"})
    if do == "move":
        return await region.http_outcome("POST", "/v1/moves", message)
    why = await region.http_outcome("POST", "/v1/requests", message)
    if why:
        return why
    state = await region.http.get(f"/v1/requests/{message['request']}?wait=30")
    return str(state.json()["builds"][0].get("reason", ""))


async def rows_of_what_ifs(region: TwoProjects) -> AsyncIterator[tuple[str, list[str]]]:
    for named in text_fields(BuildRequested):
        if named.kind is None or named.kind.judged == "open":
            continue
        found = []
        for whose, value in zip(WHOSE, values_of(region, named.kind.name, "boot", named.path), strict=True):
            if value is None or (named.is_new and whose == "own"):
                found.append("")
                continue
            request = with_value(boot_of(region, named.path), named.path, value)
            answer = await region.ask("what_if", {"request": request})
            why = answer.refused or answer.answer["refusal"]
            found.append(refuser(str(why)))
        yield f"`WhatIf` `request.{named.path}` | bus", found


async def test_every_field_that_names_an_object_is_judged(tmp_path: Path) -> None:
    async with two_projects(tmp_path) as region:
        rows = [row for rows in (rows_of_acts, rows_of_what_ifs) async for row in rows(region)]
    print("\n| message and field | door |", " | ".join(WHOSE), "|\n|" + "---|" * (len(WHOSE) + 2))
    for name, found in rows:
        print(f"| {name} | {' | '.join(found)} |")
    for name, (own, other, far, unknown) in rows:
        assert own in ("**accepted**", "", "-"), name
        for refused in (other, far, unknown):
            assert "??" not in refused, name
        assert "**accepted**" not in (other, far), name
        is_new = name.split("`")[3].endswith(NEW) and "Steered" not in name
        assert (unknown == "**accepted**") == is_new, name


async def test_no_answer_has_a_text_of_another_project(tmp_path: Path) -> None:
    async with two_projects(tmp_path) as region:
        theirs, ours = region.batch.objects, region.web.objects
        secret = {*theirs.values(), *region.batch.hosts, "thing of batch", "name of batch"}
        secret -= {*region.web.hosts}
        both = [ours["instance"], theirs["instance"], theirs["near"], ours["moved"], theirs["moved"]]
        questions: dict[str, list[dict[str, Any]]] = {
            "builds": [{"cell": cell, "builds": both} for cell in ("c1", "c2")],
            "instances": [{"cell": cell} for cell in ("c1", "c2")],
            "ended_without_host": [{}],
            "decision": [{"id": id_} for id_ in (*theirs.values(), *ours.values()) if len(id_) == 36],
            "allocations": [{"consumers": both}],
            "usages": [{"project": "web"}],
            "moves": [
                {"cell": cell, "builds": both, "moves": [theirs["move"], ours["move"]]}
                for cell in ("c1", "c2")
            ],
            "waiting": [{}, {"requests": [theirs["request"], ours["request"]]}],
            "groups": [{}, {"ids": [theirs["server group"]]}, {"members": both}],
            "what_if": [
                {"request": boot_of(region, ""), "room": True, "claims": True, "preempt": True},
                {"request": boot_of(region, "") | {"flavor": SMALL | {"vcpus": 4000}}},
            ],
        }
        refused = (await region.ask("nothing", {})).refused
        known = refused.removeprefix("query: no nothing, only ").split(", ")
        assert sorted(known) == sorted(questions), "each query is asked here"
        answered = set[str]()
        for query, messages in questions.items():
            for message in messages:
                answer = await region.ask(query, message)
                assert not answer.refused, (query, answer)
                text = revealed(answer.answer)
                asked = {*parts.encoder().encode(message).decode().split('"')}
                found = {word for word in secret if word in text}
                assert found == set() or (query == "decision" and found <= asked), (query, found, text)
                if any(id_ in text for id_ in ours.values()):
                    answered.add(query)
        own = {"builds", "instances", "decision", "allocations", "moves", "waiting", "groups"}
        assert own - answered == set(), "the answers have data of the own project"
        for path in (
            *paths_of(ours, theirs),
            "/v1/builds?limit=1000",
            "/v1/builds?cell=c2",
            "/v1/events?after=0",
        ):
            text = revealed((await region.http.get(path)).json())
            found = {word for word in secret if word in text and word not in path}
            assert found == set(), (path, found)


def revealed(answer: Any) -> str:
    """Return an answer as JSON. Its decisions are without hosts: these are hosts that the scheduler compared
    for the own request, whatever is on them.
    """
    text = parts.encoder().encode(answer).decode()
    return json.dumps(without_hosts(json.loads(text), is_decision=False))


def without_hosts(value: Any, *, is_decision: bool) -> Any:
    if isinstance(value, list):
        return [without_hosts(each, is_decision=is_decision) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: without_hosts(each, is_decision=is_decision or name == "decision")
        for name, each in value.items()
        if not (is_decision and name in ("hosts", "host", "record", "nearest"))
    }


def paths_of(*objects: dict[str, str]) -> list[str]:
    ids = [id_ for each in objects for id_ in each.values() if len(id_) == 36]
    return [f"/v1/{what}/{id_}" for what in ("requests", "builds", "moves") for id_ in ids]
