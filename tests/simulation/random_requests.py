"""Random requests to the simulated cloud, and random changes by its operator."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from bus import topics
from bus.aggregates import ChangeAggregate, MakeAggregate
from bus.messages import BuildRequested
from bus.parts import MoveParts, RequestParts
from bus.replication import PlacementChanged
from bus.requests import Flavor, Image
from bus.worker import On, Worker
from compute_sim.machines import SimHost
from features.groups.constraints import DomainConstraints
from features.groups.messages import GroupPart, MakeGroup, group_of
from features.moves.messages import MoveKind, MoveRequested
from features.preemption.messages import PriorityClass
from features.topology.messages import TopologyPart
from features.waiting.messages import WaitPart

if TYPE_CHECKING:
    pass

METAL = {
    "resources:CUSTOM_BAREMETAL": "1",
    "resources:VCPU": "0",
    "resources:MEMORY_MB": "0",
    "resources:DISK_GB": "0",
}
NODE_CLASSES = ("baremetal", "other")  # Ironic's resource classes of nodes
PROJECTS = ("p1", "p2", "p3")
GROUPS = (
    MakeGroup(group=str(UUID(int=1)), name="apart", policy="anti-affinity", project="p1"),
    MakeGroup(
        group=str(UUID(int=2)), name="two by two", policy="anti-affinity", max_per_host=2, project="p2"
    ),
    MakeGroup(group=str(UUID(int=3)), name="together", policy="affinity", project="p3"),
    MakeGroup(group=str(UUID(int=4)), name="rather apart", policy="soft-anti-affinity", project="p1"),
)
ZONES = tuple(
    MakeAggregate(aggregate=str(UUID(int=10 + index)), name=zone, metadata={"availability_zone": zone})
    for index, zone in enumerate(("east", "west"))
)


PRIORITIES = (
    PriorityClass(name="batch", value=1, grace=0.5, requeue=True),
    PriorityClass(name="web", value=4, preempts=True, budget=3),
    PriorityClass(name="production", value=7, preempts=True),
)


def is_metal(request: BuildRequested) -> bool:
    return request.flavor.name == "metal"


def a_request(chance: Random, new_id: Callable[[], str], hosts: Sequence[SimHost]) -> BuildRequested:
    kind = chance.random()
    if kind < 0.1:
        flavor = Flavor(name="monster", vcpus=10_000)
    elif kind < 0.25:
        flavor = Flavor(name="metal", extra_specs=METAL)
    else:
        flavor = Flavor(name="small", vcpus=chance.randint(1, 4), memory_mb=256)
    count = chance.choice((1, 1, 1, 2, 3)) if flavor.name == "small" else 1
    joins = chance.choice(GROUPS) if chance.random() < 0.4 else None
    wait = chance.choice(("", "5s", "20s", "60s"))
    smaller = Flavor(name="tiny", vcpus=1, memory_mb=128)
    request = new_id()
    return BuildRequested(
        request=request,
        project=joins.project if joins else PROJECTS[int(request[-1], 16) % len(PROJECTS)],
        instances=tuple(new_id() for _ in range(count)),
        flavor=flavor,
        or_else=(smaller,) if chance.random() < 0.2 else (),
        at_least=chance.randint(1, count) if count > 1 and chance.random() < 0.4 else 0,
        zone=chance.choice(ZONES).name if chance.random() < 0.1 else "",
        forced_host=chance.choice(hosts).host if chance.random() < 0.1 else "",
        parts=RequestParts(
            GroupPart(group=joins.group) if joins else None,
            WaitPart(wait=wait, priority=chance.choice((0, 0, 5))) if wait else None,
        ),
    )


def for_node_class(request: BuildRequested, *, always: bool) -> BuildRequested:
    """Return the request, if it is for a node or `always`, as one for a node of a random resource class. The
    class is chosen without the chance of the world.
    """
    if not (always or is_metal(request)):
        return request
    class_ = Random(f"class {request.request}").choice(NODE_CLASSES)
    extra_specs = {f"resources:CUSTOM_{class_.upper()}": "1", **dict(list(METAL.items())[1:])}
    flavor = Flavor(name="metal", extra_specs=extra_specs)
    return msgspec.structs.replace(request, flavor=flavor, or_else=() if always else request.or_else)


def asked_of(flavor: Flavor) -> dict[str, int]:
    """Return the amounts that an instance of a flavor needs at one provider."""
    if flavor.name == "metal":
        specs = flavor.extra_specs.items()
        return {name.removeprefix("resources:"): 1 for name, amount in specs if amount == "1"}
    memory = {"MEMORY_MB": flavor.memory_mb} if flavor.memory_mb else {}
    return {"VCPU": flavor.vcpus, **memory}


def with_priority(request: BuildRequested, *, low: bool, full: bool = False) -> BuildRequested:
    """Return a request with a random priority, chosen without the chance of the world: first requests of low
    priority fill the cloud, then requests of high priority need more than is left.
    """
    own = Random(request.request)
    vcpus = own.choice((2, 4)) if low else own.randint(4, 8)
    group = group_of(request.parts) if own.random() < 0.3 else None
    spread = None
    if full:  # a request takes most of a host, and nothing but its size excludes a host
        vcpus, group = own.randint(5, 8), None
        few = request.instances[:2]  # there are two such hosts
        apart = not low and len(few) > 1 and Random(f"gang {request.request}").random() < 0.5
        request = msgspec.structs.replace(
            request, instances=few, at_least=min(request.at_least, 1), zone="", or_else=()
        )
        spread = TopologyPart(topology=DomainConstraints(spread="host")) if apart else None
    flavor = Flavor(name="small", vcpus=vcpus, memory_mb=256)
    priority = own.choice((0, 1)) if low else own.choice((1, 4, 7, 7))
    wait = "60s" if full else request.parts.waits.longest
    waits = WaitPart(wait=wait, priority=priority) if wait or priority else None
    return msgspec.structs.replace(
        request,
        flavor=request.flavor if is_metal(request) and not full else flavor,
        parts=RequestParts(GroupPart(group=group) if group else None, spread, waits),
        forced_host="",
    )


_KINDS: dict[MoveKind, int] = {"migrate": 6, "live": 5, "resize": 5, "shelve": 2, "rebuild": 2, "unshelve": 1}


def a_move(
    chance: Random, id_: str, build: str, cell: str, hosts: Sequence[SimHost], *, shelved: bool
) -> MoveRequested:
    [kind] = chance.choices(list(_KINDS), list(_KINDS.values()))
    if shelved and chance.random() < 0.8:
        kind = "unshelve"
    seeks = kind not in ("shelve", "rebuild")
    verify = kind in ("migrate", "resize") and chance.random() < 0.5
    return MoveRequested(
        move=id_,
        build=build,
        kind=kind,
        cell=cell,
        flavor=Flavor(name="small", vcpus=chance.randint(1, 4), memory_mb=256) if kind == "resize" else None,
        image=Image(name="another") if kind == "rebuild" else None,
        wanted_host=chance.choice(hosts).host if seeks and chance.random() < 0.1 else "",
        forced_host=chance.choice(hosts).host if seeks and chance.random() < 0.1 else "",
        same_host=kind == "resize" and chance.random() < 0.5,
        verify=verify,
        verify_for=chance.choice(("", "5s", "20s")) if verify else "",
        alternates=chance.choice((0, 2, 2)),
    )


def a_patient_move(asked: MoveRequested, share: float) -> MoveRequested:
    own = Random(asked.move)
    if asked.kind in ("shelve", "rebuild") or own.random() >= share:
        return asked
    part = WaitPart(wait=own.choice(("5s", "20s", "60s")), priority=own.choice((0, 0, 5)))
    asked = msgspec.structs.replace(asked, parts=MoveParts(part))
    if asked.kind == "unshelve" or own.random() < 0.4:
        return asked
    larger = Flavor(name="small", vcpus=own.randint(6, 9), memory_mb=256)
    return msgspec.structs.replace(asked, kind="resize", flavor=larger, wanted_host="", forced_host="")


def another_zone(chance: Random, hosts: Sequence[SimHost]) -> ChangeAggregate:
    zone, root = chance.choice(ZONES).aggregate, (chance.choice(hosts).root,)
    if chance.random() < 0.7:
        return ChangeAggregate(aggregate=zone, add=root, force=True)
    return ChangeAggregate(aggregate=zone, remove=root, force=True)


def losing_changes(worker: Worker, chance: Random) -> Worker:
    """Return a worker that does not receive a third of placement's changes."""

    def lossy(row: On) -> On:
        if row.address.topic is not topics.PLACEMENT_CHANGED:
            return row

        async def handle_many(messages: Sequence[PlacementChanged]) -> Any:
            await row.handler([message for message in messages if chance.random() > 0.33])
            return [None] * len(messages)

        return replace(row, handler=handle_many)

    return replace(worker, consumes=[lossy(row) for row in worker.consumes])
