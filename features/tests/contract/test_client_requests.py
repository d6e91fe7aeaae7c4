"""A client's permitted acts, and the rows of its answers, depend on the projects to which it is limited."""

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from berth.kit.testing import packages
from bus.audit_trail import ActRecord
from bus.claims import CLEANUP, Choice, holder_consumer
from bus.decisions import Decision
from bus.errors import NoAnswer
from bus.invalid_requests import KINDS
from bus.messages import (
    BuildCancelled,
    BuildCancelRequested,
    BuildPlaced,
    BuildRequested,
    BuildUnplaceable,
    Selection,
)
from bus.parts import PlacedParts, RequestParts
from bus.projects import UNKNOWN
from bus.queries import (
    BuildsFound,
    BuildStands,
    DecisionFound,
    FindBuilds,
    FindDecision,
    FindInstances,
    FindWaiting,
    HeldHost,
    Instance,
    InstancesFound,
    WaitingFound,
    WaitingKind,
    WaitingRequest,
)
from bus.requests import BuildSpec, Flavor, Hints
from bus.resources import AllocationsFound, Consumer, FindAllocations, FindUsages, UsagesFound
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Id
from features.clients.client_requests import ClientRequests
from features.clients.messages import ClientAsked, ClientEditRequested, ClientRequested, FindClients
from features.groups.messages import FindGroups, GroupPart, GroupsFound, ServerGroup
from features.groups.scheduler import of_clients as groups_of_clients
from features.moves.lookups import MoveLookups
from features.moves.messages import (
    FindMoves,
    MoveProgress,
    MoveRefused,
    MoveRequested,
    MovesFound,
    MoveStands,
    MoveSteered,
)
from features.moves.scheduler import of_clients as moves_of_clients
from features.preemption.messages import Victim, Victims
from features.reservations.messages import RESERVATION, slot_consumer
from features.waiting.scheduler import of_clients as waiting_of_clients
from features.what_if.messages import WhatIf, WhatIfAnswered
from features.what_if.scheduler import of_clients as what_ifs_of_clients
from scheduler_worker.extension import Fallback, Owners, SchedulerPart, decisions, unplaceable
from tests.support.ids import uid
from tests.support.request_parts import changed
from tests.support.virtual_time import TurnedClock

VM = Flavor(name="vm", vcpus=1)
OURS, THEIRS, SHELVED, LEFTOVER, NEW = uid(1, "b"), uid(2, "b"), uid(3, "b"), uid(4, "b"), uid(5, "b")
THEIR_SHELVED, THEIR_SLOT, FORGOTTEN = uid(6, "b"), uid(7, "b"), uid(8, "b")
MOVE, THEIR_MOVE, STARTING, THEIR_STARTING = uid(1, "d"), uid(2, "d"), uid(3, "d"), uid(4, "d")
OUR_GROUP, THEIR_GROUP, RESERVED = uid(1, "f"), uid(2, "f"), uid(3, "f")
PROJECTS = {OURS: "p1", THEIRS: "q", SHELVED: "p1", THEIR_SHELVED: "q"}
STARTED_MOVES = {STARTING: "p1", THEIR_STARTING: "q"}  # their claims are stored, and no cell knows them yet
RETIRED = {SHELVED: "c1", THEIR_SHELVED: "c1", MOVE: "", THEIR_MOVE: "", FORGOTTEN: ""}
RETIRED |= dict.fromkeys(STARTED_MOVES, "")


def a_stands(build: str) -> BuildStands:
    spec = BuildSpec(flavor=VM, project=PROJECTS[build])
    chosen = Selection(root=uid(9), host="h1", agent="a1", choice=Choice({}))
    parts = PlacedParts(Victims(preempts=(Victim(build=THEIRS, generation=1, attempt=1, holder=uid(8)),)))
    placed = BuildPlaced(
        build=build, request=build, cell="c1", chosen=chosen, generation=1, spec=spec, parts=parts
    )
    return BuildStands(build=build, status="active", placed=placed, host="h1")


def a_consumer(id_: str, project: str, type_: str = "INSTANCE") -> Consumer:
    return Consumer(id=id_, generation=1, project=project, user="u", type=type_, allocations={})


class FakeCloud:
    """Scripted answers: instances of projects p1 and q, a guest left behind of p1, shelved instances, server
    groups, and a reservation with a slot.
    """

    silent = False

    def __init__(self) -> None:
        self.taken: dict[Id, str] = {}  # requests that a fallback has taken over → their projects

    async def allocations(self, question: FindAllocations) -> AllocationsFound:
        held = [a_consumer(OURS, "p1"), a_consumer(THEIRS, "q"), a_consumer(LEFTOVER, "p1", CLEANUP)]
        held.append(a_consumer(THEIR_SLOT, "q", RESERVATION))
        objects = {OUR_GROUP: "p1", THEIR_GROUP: "q", RESERVED: "", THEIR_SLOT: "", **STARTED_MOVES}
        return AllocationsFound(
            consumers=tuple(consumer for consumer in held if consumer.id in question.consumers),
            generations={},
            objects={id_: project for id_, project in objects.items() if id_ in question.consumers},
            retired={id_: cell for id_, cell in RETIRED.items() if id_ in question.consumers},
        )

    async def usages(self, question: FindUsages) -> UsagesFound:
        return UsagesFound(used={question.project: {}}, consumers={})

    async def groups(self, question: FindGroups) -> GroupsFound:
        every = [
            ServerGroup(id=uid(number), name="g", policy="affinity", project=project)
            for number, project in ((1, "p1"), (2, "q"))
        ]
        return GroupsFound(groups=tuple(every))

    async def builds(self, question: FindBuilds) -> BuildsFound:
        if self.silent:
            raise NoAnswer("silent")
        return BuildsFound(builds=tuple(a_stands(build) for build in question.builds if build in PROJECTS))

    async def instances(self, question: FindInstances) -> InstancesFound:
        every = [
            Instance(
                build=build,
                status="active",
                cell="c1",
                host=f"host of {project}",
                root=uid(9),
                project=project,
                flavor="vm",
                parts=a_stands(build).placed.parts,
            )
            for build, project in PROJECTS.items()
        ]
        return InstancesFound(instances=tuple(every), last=question.project)

    async def moves(self, question: FindMoves) -> MovesFound:
        if self.silent:
            raise NoAnswer("silent")
        every = {MOVE: OURS, THEIR_MOVE: THEIRS}
        return MovesFound(
            moves=tuple(
                MoveStands(move=move, build=build, kind="resize", cell="c1", phase="verify")
                for move, build in every.items()
                if move in question.moves or build in question.builds
            )
        )

    # Answers of the scheduler

    async def waiting(self, question: FindWaiting) -> WaitingFound:
        every = [
            WaitingRequest(request=uid(n), instances=1, project=project, flavor="vm", priority=0, since=0.0,
                           until=0.0, kind="k", position=1, lacks="")
            for n, project in ((1, "p1"), (2, "q"))
        ]  # fmt: skip
        every_hold = [
            HeldHost(
                root=uid(9), host=f"host of {project}", request=uid(n), project=project, since=0.0, until=9.0
            )
            for n, project in ((1, "p1"), (2, "q"))
        ]
        return WaitingFound(
            waiting=tuple(every), count=1, rescued=7, by_project=dict.fromkeys(question.projects, 1),
            kinds=(WaitingKind("k", "vm", 1, 1),), backlog={"p1": 3, "q": 5}, shares={"p1": 0.25, "q": 0.75},
            holds=tuple(every_hold),
        )  # fmt: skip

    async def decision(self, question: FindDecision) -> DecisionFound:
        request = boot(request=question.id, project=PROJECTS[question.id])
        return DecisionFound(known=True, request=request)

    async def answer(self, question: WhatIf, *, names_others: bool = True) -> WhatIfAnswered:
        assert not names_others
        return WhatIfAnswered(fits=True, refusal=question.request.project)

    def hosts(self) -> list[Any]:
        return [Host("c1")]


@dataclass
class Host:
    cell: str


class TakenRequests(Fallback):
    """A fallback that has taken over requests, given with their projects."""

    def __init__(self, projects: dict[Id, str]) -> None:
        self._projects = projects

    async def projects_of(self, ids: Collection[Id]) -> dict[Id, str]:
        return {id_: self._projects[id_] for id_ in ids if id_ in self._projects}


@pytest.fixture
async def cloud() -> FakeCloud:
    return FakeCloud()


@pytest.fixture
async def intake(cloud: FakeCloud) -> AsyncIterator[ClientRequests]:
    database = Database("sqlite+aiosqlite://", inline=True)
    await migrate(database, *packages("scheduler"))
    fake = cast(Any, cloud)
    lookups = MoveLookups(fake, fake, fake, fake, cloud.moves)
    queries = {
        "waiting": waiting_of_clients(fake),
        "what_if": what_ifs_of_clients(fake),
        "groups": groups_of_clients(cloud.groups),
        "moves": moves_of_clients(cloud.moves),
    }
    part = SchedulerPart(builds_of=(lookups.builds_of,), client_queries=queries)
    scheduler: Any = SimpleNamespace(
        placement=cloud,
        source=cloud,
        clock=TurnedClock(5.0).clock,
        parts=(part,),
        fallbacks=(TakenRequests(cloud.taken),),
    )
    owners = Owners(database, fake, scheduler)
    made = ClientRequests(
        database, scheduler, fake, owners, fake, lambda query, seconds: cloud.moves, lambda: (part,)
    )
    await made.edit(ClientEditRequested(client="shop", projects=("p1",)))
    await made.edit(ClientEditRequested(client="both", projects=("p1", "p2")))
    yield made
    await database.close()


def boot(**given: Any) -> BuildRequested:
    return changed(BuildRequested(request=NEW, instances=(NEW,), flavor=VM), **given)


async def become(intake: ClientRequests, client: str, act: Any) -> Any:
    return (await requested(intake, asking(act, client)))[0]


def asking(act: Any, client: str = "shop") -> ClientRequested:
    return ClientRequested(client=client, do=KINDS[type(act)].action, message=act)


async def requested(intake: ClientRequests, asked: ClientRequested) -> tuple[Any, ActRecord]:
    """Return the outcome of a request, and its record for the audit trail."""
    ((outcome, message),) = await intake.request_many([asked])  # type: ignore[misc]
    (record,) = message.records  # type: ignore[union-attr]
    return outcome, record


def joining(*members: str) -> RequestParts:
    """Return the parts of a request whose instances join a group with these other members."""
    return RequestParts(GroupPart(group=OUR_GROUP, members=members))


def a_move(**given: Any) -> MoveRequested:
    return changed(MoveRequested(move=MOVE, build=OURS, kind="resize"), **given)


def a_steer(**given: Any) -> MoveSteered:
    return structs.replace(MoveSteered(move=MOVE, build=OURS, cell="c1", to="confirm"), **given)


def own(build: str) -> BuildCancelRequested:
    return BuildCancelRequested(build=build)


ALLOWED = {
    "its only project is the default": ("shop", boot(), {"project": "p1", "reply_to": "shop"}),
    "it names its project": ("both", boot(project="p2"), {"project": "p2", "reply_to": "both"}),
    "and a name, not": ("shop", boot(reply_to="shop_7"), {"reply_to": "shop_7"}),
    "beside its own instance": ("shop", boot(hints=Hints(same_host=(OURS,))), {"project": "p1"}),
    "a delete, wherever it is": ("shop", own(OURS), {"anywhere": True, "reply_to": "shop"}),
    "a delete of a shelved one": ("shop", own(SHELVED), {"build": SHELVED}),
    "a repeated boot of a shelved one": ("shop", boot(instances=(SHELVED,)), {"project": "p1"}),
    "a repeated boot with a topology, which made a group": (
        "shop",
        boot(request=OUR_GROUP),
        {"project": "p1"},
    ),
    "a move": ("shop", a_move(move=NEW), {"reply_to": "shop"}),
    "a repeated move": ("shop", a_move(), {"reply_to": "shop"}),
    "a repeated move that its cell does not know yet": ("shop", a_move(move=STARTING), {"reply_to": "shop"}),
    "a steering": ("shop", a_steer(), {"reply_to": "shop"}),
}


@pytest.mark.parametrize(("client", "act", "fields"), ALLOWED.values(), ids=ALLOWED.keys())
async def test_a_permitted_request_becomes_the_message_of_an_operator(
    intake: ClientRequests, client: str, act: Any, fields: dict[str, Any]
) -> None:
    outcome = await become(intake, client, act)
    assert type(outcome) is type(act)
    assert {name: getattr(outcome, name) for name in fields} == fields


REFUSED = {
    "no client": ("gone", boot(), "client gone is not registered"),
    "another project": ("shop", boot(project="q"), "project: shop is not bound to q"),
    "which of its projects": ("both", boot(), "name one of p1, p2"),
    "another's word": ("shop", boot(reply_to="both"), "reply_to: shop, or shop_"),
    "a word like its own": ("shop", boot(reply_to="shopper"), "reply_to: shop, or shop_"),
    "a forced host": ("shop", boot(forced_host="h1"), "only operators bypass the filters"),
    "an instance id of another project": ("shop", boot(instances=(NEW, THEIRS)), "use new uuids"),
    "a request id of another project": ("shop", boot(request=THEIRS), "use new uuids"),
    "beside another's": ("shop", boot(hints=Hints(same_host=(THEIRS,))), UNKNOWN),
    "beside an unknown one": ("shop", boot(hints=Hints(same_host=(NEW,))), UNKNOWN),
    "apart from another's": (
        "shop", boot(hints=Hints(different_host=(THEIRS,))), UNKNOWN,
    ),
    "a group with another's instance as a member": (
        "shop", boot(parts=joining(*(OURS, THEIRS))), f"parts.groups.members[1]: {UNKNOWN}",
    ),
    "a group with an unknown instance as a member": (
        "shop", boot(parts=joining(*(NEW,))), f"parts.groups.members[0]: {UNKNOWN}",
    ),
    "a delete of another's": ("shop", own(THEIRS), UNKNOWN),
    "a delete of an unknown one": ("shop", own(NEW), UNKNOWN),
    "a delete of a leftover": ("shop", own(LEFTOVER), UNKNOWN),
    "a move of another's": ("shop", a_move(build=THEIRS), UNKNOWN),
    "a move by the id of another's": ("shop", a_move(move=THEIRS, wait="1h"), "use new uuids"),
    "a move by the id of what a move will leave": (
        "shop", a_move(move=holder_consumer(THEIRS, 1)), "use random uuids",
    ),
    "an id that another reservation's slot will have": (
        "shop", boot(instances=(slot_consumer(RESERVED, 9),)), "use random uuids",
    ),
    "a move by the id of another's shelved one": ("shop", a_move(move=THEIR_SHELVED), "use new uuids"),
    "a move by the id of another's move": ("shop", a_move(move=THEIR_MOVE), "use new uuids"),
    "a move by the id of another's move that its cell does not know yet": (
        "shop", a_move(move=THEIR_STARTING), "use new uuids",
    ),
    "a move by the id of another's group": ("shop", a_move(move=THEIR_GROUP), "use new uuids"),
    "a move by the id of a reservation": ("shop", a_move(move=RESERVED), "use new uuids"),
    "a move by the id of what is left behind": ("shop", a_move(move=LEFTOVER), "use new uuids"),
    "a shelved instance of another project": ("shop", boot(instances=(THEIR_SHELVED,)), "use new uuids"),
    "a group of another project": ("shop", boot(request=THEIR_GROUP), "use new uuids"),
    "a slot of a reservation": ("shop", boot(instances=(THEIR_SLOT,)), "use new uuids"),
    "a move of another project": ("shop", boot(instances=(THEIR_MOVE,)), "use new uuids"),
    "an id that ended, and no worker remembers": ("shop", boot(instances=(FORGOTTEN,)), "use new uuids"),
    "a delete of another's shelved one": ("shop", own(THEIR_SHELVED), UNKNOWN),
    "a delete of a group": ("shop", own(OUR_GROUP), UNKNOWN),
    "a delete of a slot": ("shop", own(THEIR_SLOT), UNKNOWN),
    "a move of an unknown one": ("shop", a_move(build=NEW), UNKNOWN),
    "a move to a forced host": ("shop", a_move(forced_host="h1"), "only operators bypass the filters"),
    "a move with another age": ("shop", a_move(since=1.0), "only preempted instances"),
    "an evacuation": ("shop", a_move(kind="evacuate"), "only operators evacuate"),
    "a steering of another's": ("shop", a_steer(build=THEIRS, move=THEIR_MOVE), UNKNOWN),
    "a steering of another's move": ("shop", a_steer(move=THEIR_MOVE), "no such move"),
}  # fmt: skip


@pytest.mark.parametrize(("client", "act", "why"), REFUSED.values(), ids=REFUSED.keys())
async def test_only_the_client_receives_its_refusal(
    intake: ClientRequests, client: str, act: Any, why: str
) -> None:
    outcome = await become(intake, client, act)
    match outcome:
        case BuildUnplaceable(reason=reply) | BuildCancelled(why=reply) | MoveRefused(reason=reply):
            assert why in reply
        case MoveProgress(refused=reply):
            assert why in reply
        case _:
            raise AssertionError(outcome)
    assert outcome.reply_to == client


@pytest.mark.parametrize("victim", [THEIRS, THEIR_SHELVED])
@pytest.mark.parametrize("silent", [False, True], ids=["", "a cell is silent"])
async def test_the_owner_of_an_instance_outranks_a_waiting_request_with_its_id(
    intake: ClientRequests, cloud: FakeCloud, victim: str, silent: bool
) -> None:
    cloud.silent = silent
    cloud.taken[victim] = "p1"
    async with intake.owners.database.write() as tx:
        refusal = unplaceable(
            boot(request=victim, instances=(victim,), project="p1"), (victim,), "no room", Decision()
        )
        await decisions.add(tx, [(boot(request=victim, project="p1"), refusal)], 1.0)
    for act in (own(victim), a_move(move=NEW, build=victim, kind="shelve")):
        outcome = await become(intake, "shop", act)
        assert UNKNOWN in (outcome.why if isinstance(outcome, BuildCancelled) else outcome.reason)


@pytest.mark.parametrize("silent", [False, True], ids=["", "a cell is silent"])
async def test_a_foreign_build_is_refused_like_an_unknown_build(
    intake: ClientRequests, cloud: FakeCloud, silent: bool
) -> None:
    cloud.silent = silent
    foreign, unknown = await become(intake, "shop", own(THEIRS)), await become(intake, "shop", own(NEW))
    assert foreign == structs.replace(unknown, build=THEIRS)


async def test_no_cell_is_asked_about_a_build_of_another_project(
    intake: ClientRequests, cloud: FakeCloud
) -> None:
    cloud.silent = True
    with pytest.raises(NoAnswer):  # the request is tried again
        await become(intake, "shop", a_steer())
    assert UNKNOWN in (await become(intake, "shop", a_steer(build=THEIRS, move=THEIR_MOVE))).refused


async def test_a_permitted_and_a_refused_request_are_recorded(intake: ClientRequests) -> None:
    _, done = await requested(intake, asking(own(OURS)))
    assert (done.operator.name, done.operator.projects, done.operator.is_program) == ("shop", ("p1",), True)
    assert (done.interface, done.act, done.target, done.outcome) == ("bus", "cancel", OURS, "done")
    _, denied = await requested(intake, asking(own(THEIRS)))
    assert (denied.outcome, denied.detail) == ("denied", f"build: {UNKNOWN}")


async def test_a_removed_client_is_refused_by_the_next_request(intake: ClientRequests) -> None:
    answered = await intake.edit(ClientEditRequested(client="shop"))
    assert answered.before is not None
    assert answered.before.projects == ("p1",)
    assert isinstance(await become(intake, "shop", boot()), BuildUnplaceable)
    assert [client.name for client in (await intake.clients(FindClients())).clients] == ["both"]


async def test_a_client_with_a_role_only_acts_for_no_project(intake: ClientRequests) -> None:
    await intake.edit(ClientEditRequested(client="ann", role="operator"))
    assert (await become(intake, "ann", boot())).reason == "project: ann is bound to none"
    answered = await intake.ask(ClientAsked(client="ann", query="waiting"))
    assert answered.refused == "project: ann is bound to none"


async def test_answers_hold_rows_of_the_clients_projects_only(intake: ClientRequests) -> None:
    async def ask(**question: Any) -> Any:
        ((query, message),) = question.items()
        answer = await intake.ask(ClientAsked(client="shop", query=query, message=message))
        assert not answer.refused
        return answer.answer

    builds = await ask(builds=FindBuilds(cell="c1", builds=(OURS, THEIRS)))
    assert [build.build for build in builds.builds] == [OURS]
    assert THEIRS not in str(builds), "the instances that it preempted are not named"
    instances = await ask(instances=FindInstances(cell="c1"))
    assert ([each.project for each in instances.instances], instances.last) == (["p1", "p1"], "p1")
    assert THEIRS not in str(instances)
    moves = await ask(moves=FindMoves(cell="c1", moves=(MOVE, THEIR_MOVE)))
    assert [move.move for move in moves.moves] == [MOVE]
    waiting = await ask(waiting=FindWaiting(projects=("p1",)))
    assert ([one.project for one in waiting.waiting], waiting.rescued) == (["p1"], 0)
    assert (waiting.by_project, waiting.backlog, waiting.shares) == ({"p1": 1}, {"p1": 3}, {"p1": 0.25})
    assert [held.project for held in waiting.holds] == ["p1"]
    assert (await ask(decision=FindDecision(id=OURS))).known
    assert await ask(decision=FindDecision(id=THEIRS)) == DecisionFound()
    assert (await ask(what_if=WhatIf(request=boot()))).refusal == "p1"
    allocations = await ask(allocations={"consumers": [OURS, THEIRS]})  # as JSON
    assert [one.id for one in allocations.consumers] == [OURS]
    assert (await ask(usages=FindUsages(project="p1"))).used == {"p1": {}}
    assert [group.project for group in (await ask(groups=FindGroups())).groups] == ["p1"]


QUESTIONS: dict[str, tuple[str, dict[str, Any], str]] = {
    "no client": ("gone", {"waiting": FindWaiting()}, "not registered"),
    "no query": ("shop", {"nothing": {}}, "query: no nothing, only builds, instances, "),
    "an invalid field": ("shop", {"usages": {"project": 7}}, "project: Expected `str`, got `int`"),
    "another project": ("shop", {"usages": FindUsages(project="q")}, "not bound to q"),
    "the number of requests of another project": (
        "shop",
        {"waiting": FindWaiting(projects=("p1", "q"))},
        "projects[1]: shop is not bound to q",
    ),
    "which project": ("both", {"waiting": FindWaiting()}, "name one of p1, p2"),
    "all moves": ("shop", {"moves": FindMoves(cell="c1")}, "name the moves or builds"),
    "a group with another's instance as a member": (
        "shop",
        {"what_if": WhatIf(request=boot(parts=joining(*(THEIRS,))))},
        f"parts.groups.members[0]: {UNKNOWN}",
    ),
    "beside another's": (
        "shop",
        {"what_if": WhatIf(request=boot(hints=Hints(same_host=(THEIRS,))))},
        UNKNOWN,
    ),
    "ids of another's": ("shop", {"what_if": WhatIf(request=boot(instances=(THEIRS,)))}, "use new uuids"),
    "a request of another project": (
        "shop",
        {"what_if": WhatIf(request=boot(project="q"))},
        "project: shop is not bound to q",
    ),
    "a forced host": ("shop", {"what_if": WhatIf(request=boot(forced_host="h"))}, "only operators"),
}


@pytest.mark.parametrize(("client", "question", "why"), QUESTIONS.values(), ids=QUESTIONS.keys())
async def test_a_question_is_refused_in_its_answer(
    intake: ClientRequests, client: str, question: dict[str, Any], why: str
) -> None:
    ((query, message),) = question.items()
    assert why in (await intake.ask(ClientAsked(client=client, query=query, message=message))).refused
