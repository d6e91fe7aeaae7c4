"""Every interface for requests reads, judges, refuses and records a boot by the same functions, so with the
same texts: the topic of clients, the relay of clients with a role, the REST API, and the bus of commands.

`bus.reading.read` reads, `bus.acts` judges; their rules have tests of their own. The control room is
in `tests/contract/test_control_room_roles.py`.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from berth.kit import BadSetting, checked
from berth.kit.testing import packages
from bus import parts, topics
from bus.audit_trail import ActRecord, ActsRecorded, Operator, Role
from bus.delivery.recording import Caller, caller
from bus.errors import OperationRefused, Poison
from bus.local import LocalBroker, LocalTransport
from bus.messages import BuildRequested, BuildUnplaceable
from bus.projects import FindProjects, ProjectsFound
from bus.requests import Flavor
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Message
from bus.worker import Worker, on
from features.clients.client_requests import ClientRequests
from features.clients.messages import ClientEditRequested, ClientRelay, ClientRequested
from features.clients.tests.support.relayed_region import a_client
from tests.support.acting_region import ActingRegion
from tests.support.buses import serving
from tests.support.ids import uid
from tests.support.rest_region import TAKEN, a_caller, a_region
from tests.support.virtual_time import TurnedClock
from tests.support.waiting import until

# In the regions of the tests it is the id of an instance of p2 in c2; the REST API has another one.
TAKEN_ON_BUS = uid(2)


@dataclass(frozen=True)
class BootCase:
    """A boot in project p1 and cell c1 by ann, and the expected refusal; empty: it is permitted."""

    why: str = ""
    role: Role = "operator"
    cells: tuple[str, ...] = ("c1",)  # to which the role is limited
    project: str = "p1"  # in which ann is a member
    is_taken: bool = False  # its instance has an id of others
    fields: dict[str, Any] = field(default_factory=dict)
    unknown: dict[str, Any] = field(default_factory=dict)  # fields that only JSON can have

    def request(self, taken: str) -> BuildRequested:
        instance = taken if self.is_taken else uid(6)
        flavor = Flavor(name="small", vcpus=1)
        return BuildRequested(
            request=uid(5), instances=(instance,), flavor=flavor, project="p1", cell="c1", **self.fields
        )

    def as_json(self, taken: str) -> dict[str, Any]:
        given: dict[str, Any] = parts.builtins_of(self.request(taken))
        return given | self.unknown


@dataclass
class BootAtInterface:
    """The outcome of a boot at an interface: the reason if it was refused, messages, and records."""

    why: str = ""
    boots: list[BuildRequested] = field(default_factory=list)
    records: Sequence[ActRecord] = ()

    async def boot(self, message: BuildRequested) -> None:
        self.boots.append(message)


OUTCOMES = ("denied", "done")


async def by_rest(boot: BootCase, identity: Any) -> BootAtInterface:
    async with a_region() as region:
        answer = await region.send(identity, "POST", "/v1/requests", boot.as_json(TAKEN))
        why = "" if answer.is_success else answer.json()["errors"][0]["detail"]
        return BootAtInterface(why, cast(Any, [*region.cloud.published]), await region.recorded())


async def by_rest_with_a_role(boot: BootCase) -> BootAtInterface:
    return await by_rest(boot, a_caller(boot.role, cells=boot.cells))


async def by_rest_as_a_member(boot: BootCase) -> BootAtInterface:
    return await by_rest(boot, a_caller("member", project=boot.project))


async def by_relay(boot: BootCase) -> BootAtInterface:
    outcome = BootAtInterface()
    booting = Worker("booting", consumes=[on(topics.BUILD_REQUESTED, outcome.boot)])
    async with a_client(boot.role, booting, cells=boot.cells) as (_, region):
        relay = ClientRelay(
            client="ann", to="build.requested", message=json.dumps(boot.as_json(TAKEN_ON_BUS))
        )
        outcome.why = (await region.intake.relay(relay)).why
        await settled(boot, outcome, region)
    return outcome


async def by_command(boot: BootCase) -> BootAtInterface:
    outcome, region, broker = BootAtInterface(), ActingRegion(), LocalBroker()
    booting = Worker("booting", consumes=[on(topics.BUILD_REQUESTED, outcome.boot)])
    async with serving(lambda: LocalTransport(broker), region.worker(), booting) as bus:
        who = Operator(name="ann", role=boot.role, cells=boot.cells)
        token = caller.set(Caller(operator=who, interface="command"))
        try:
            await bus.publish(checked(boot.request(TAKEN_ON_BUS)))
        except (OperationRefused, BadSetting) as problem:
            outcome.why = str(problem)
        finally:
            caller.reset(token)
        await settled(boot, outcome, region)
    return outcome


async def settled(boot: BootCase, outcome: BootAtInterface, region: ActingRegion) -> None:
    """Wait until the boot and its record have arrived."""
    if boot not in UNREADABLE:
        await until(lambda: [*region.records] and region.records[-1].outcome in OUTCOMES)
    if not boot.why:
        await until(lambda: outcome.boots)
    outcome.records = region.records


class TakenIds:
    async def find(self, question: FindProjects) -> ProjectsFound:
        return ProjectsFound(projects={TAKEN_ON_BUS: "p2"})


async def by_topic(boot: BootCase) -> BootAtInterface:
    database, nothing = Database("sqlite+aiosqlite://", inline=True), cast(Any, None)
    await migrate(database, *packages("scheduler"))
    scheduler: Any = SimpleNamespace(clock=TurnedClock(5.0).clock, parts=())
    clients = ClientRequests(database, scheduler, nothing, cast(Any, TakenIds()), nothing, nothing, tuple)
    await clients.edit(ClientEditRequested(client="ann", projects=(boot.project,)))
    (outcome,) = await clients.request_many(
        [ClientRequested(client="ann", do="boot", message=boot.as_json(TAKEN_ON_BUS))]
    )
    await database.close()
    if isinstance(outcome, Poison):
        return BootAtInterface(str(outcome))
    sent = cast(Sequence[Message], outcome)
    records = [record for each in sent if isinstance(each, ActsRecorded) for record in each.records]
    why = "".join(each.reason for each in sent if isinstance(each, BuildUnplaceable))
    return BootAtInterface(why, [each for each in sent if isinstance(each, BuildRequested)], records)


INVALID = BootCase("zone: Expected `str` of length <= 255", fields={"zone": "z" * 256})
STRICT = BootCase("zoone: not known here; did you mean zone?", unknown={"zoone": "a", "strict": True})
UNREADABLE = INVALID, STRICT
OF_ROLES = {
    "invalid": INVALID,
    "an unknown field, strictly": STRICT,
    "a role that is too low": BootCase("boot takes the role operator; ann has reader", role="reader"),
    "outside its limits": BootCase(
        "boot: ann may act in the cells c2 only, and the target is in c1", cells=("c2",)
    ),
    "an id of others": BootCase("is in use by others: use new uuids", is_taken=True),
    "permitted": BootCase(),
}
OF_MEMBERS = {
    "invalid": INVALID,
    "an unknown field, strictly": STRICT,
    "another project": BootCase("project: ann is not bound to p1", project="p9"),
    "an id of others": BootCase("is in use by others: use new uuids", is_taken=True),
    "what only operators may": BootCase("forced_host: only operators bypass", fields={"forced_host": "h1"}),
    "permitted": BootCase(),
}
Door = Callable[[BootCase], Awaitable[BootAtInterface]]
DOORS: dict[str, tuple[Door, dict[str, BootCase]]] = {
    "REST, by a role": (by_rest_with_a_role, OF_ROLES),
    "relay": (by_relay, OF_ROLES),
    "command": (by_command, {name: boot for name, boot in OF_ROLES.items() if not boot.unknown}),
    "REST, by a member": (by_rest_as_a_member, OF_MEMBERS),
    "topic of clients": (by_topic, OF_MEMBERS),
}
ROWS = {
    f"{door}: {name}": (enter, boot) for door, (enter, boots) in DOORS.items() for name, boot in boots.items()
}


@pytest.mark.parametrize(("enter", "boot"), ROWS.values(), ids=ROWS.keys())
async def test_every_interface_reads_judges_refuses_and_records_alike(enter: Door, boot: BootCase) -> None:
    outcome = await enter(boot)
    assert boot.why in outcome.why and bool(boot.why) == bool(outcome.why)
    assert [sent.request for sent in outcome.boots] == ([] if boot.why else [uid(5)])
    if boot in UNREADABLE:
        assert not outcome.records
        return
    last = outcome.records[-1]
    found = last.act, last.operator.name, last.cell, last.outcome
    assert found == ("boot", "ann", "c1", "denied" if boot.why else "done")
    assert boot.why in last.detail
