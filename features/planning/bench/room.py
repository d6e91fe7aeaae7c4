"""A filled cloud for the measurements of plans: a planner, and the answers of placement and cells, in memory.

Placement's index is in the process; queries to placement and cells are answered from memory without encoding.
Every host has 32 VCPU and 96 GiB, and is filled with instances of random sizes.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Any

from bench.decisions import CELLS, PARTS, PERIOD, TRAITS
from berth.kit import InstantPlacement
from berth.kit.testing import add_filters
from bus.claims import Choice
from bus.clock import Clock
from bus.messages import BuildPlaced, HostReported, Selection
from bus.queries import (
    BuildsFound,
    BuildStands,
    FindBuilds,
    FindCandidates,
    FindInstances,
    Instance,
    InstancesFound,
)
from bus.reports import HostState, Inventory
from bus.requests import BuildSpec, Flavor, ResourceGroup
from bus.resources import AllocationsFound, Consumer, FindAllocations, FindProviders, Provider, ProvidersFound
from bus.vocabulary import UNSAID_ID
from features.moves.lookups import MoveLookups
from features.moves.placing import MovePlacing
from features.planning.joint_rules import JointPlacing
from features.planning.room_planning import RoomPlanner
from features.what_if.questions import WhatIfs
from placement_worker.extension import Index, ProviderState, Tree
from placement_worker.testing import IndexedSource
from scheduler_worker.core.extension import shape_of
from scheduler_worker.extension import CellQueries, ChoicePolicy, PlacementQueries, SchedulerOptions
from scheduler_worker.testing import plain_scheduler

add_filters()
VCPUS, MEMORY_MB, DISK_GB = 32, 98_304, 2000
SIZES = ((1, 2), (2, 4), (2, 8), (4, 8), (4, 16), (8, 16))  # VCPU, GiB


@dataclass
class FilledCloud:
    """Hosts filled with instances, and the answers of placement and cells about them."""

    trees: list[Tree] = field(default_factory=list)
    builds: dict[str, BuildStands] = field(default_factory=dict)
    on: dict[str, list[str]] = field(default_factory=dict)  # root → builds

    def add(self, number: int, chance: random.Random, filled: float, kept: float) -> None:
        """Add a host, fill it, and delete its instances again except for a random part (`kept`)."""
        root = f"{number:08x}-0000-4000-8000-{number:012x}"
        cell, agent, host = f"cell-{number % CELLS}", f"agent-{number}", f"host-{number}"
        used = {"VCPU": 0, "MEMORY_MB": 0, "DISK_GB": 0}
        left = dict(used)
        target = min(1.0, max(0.0, chance.gauss(filled, 0.08)))
        self.on[root] = []
        for at in range(64):
            vcpus, gib = chance.choice(SIZES)
            amounts = amounts_of(vcpus, gib)
            after = {name: amount + amounts[name] for name, amount in used.items()}
            if after["VCPU"] > VCPUS * target + 1 or after["MEMORY_MB"] > MEMORY_MB:
                continue
            used = after
            if kept < 1.0 and chance.random() >= kept:
                continue
            left = {name: amount + amounts[name] for name, amount in left.items()}
            build = f"{number:08x}-{at:04x}-4000-9000-{number:012x}"
            self.on[root].append(build)
            selection = Selection(root=root, host=host, agent=agent, choice=Choice({root: amounts}))
            flavor = Flavor(name="f", vcpus=vcpus, memory_mb=1024 * gib, disk_gb=1)
            self.builds[build] = _stands(build, cell, selection, flavor)
        stock = {
            "VCPU": Inventory(total=VCPUS),
            "MEMORY_MB": Inventory(total=MEMORY_MB),
            "DISK_GB": Inventory(total=DISK_GB),
        }
        provider = ProviderState(number, root, host, None, 1, 1, stock, left, TRAITS, ())
        self.trees.append(Tree(root, host, cell, agent, "az1", 1, False, (provider,)))

    async def instances(self, asked: FindInstances) -> InstancesFound:
        found = [
            Instance(build=build, status="active", cell=asked.cell, host=asked.host, root=asked.host,
                     project=UNSAID_ID, flavor="f")
            for build in self.on[asked.host]
        ]  # fmt: skip
        return InstancesFound(instances=tuple(found))

    async def builds_of(self, asked: FindBuilds) -> BuildsFound:
        return BuildsFound(builds=tuple([self.builds[build] for build in asked.builds]))

    async def allocations(self, asked: FindAllocations) -> AllocationsFound:
        found = []
        for build in asked.consumers:
            chosen = self.builds[build].chosen
            assert chosen is not None
            held = chosen.choice.allocations
            found.append(Consumer(id=build, generation=1, project=UNSAID_ID, user=UNSAID_ID,
                                  type="INSTANCE", allocations=held))  # fmt: skip
        return AllocationsFound(consumers=tuple(found), generations={})

    async def providers(self, asked: FindProviders) -> ProvidersFound:
        found = []
        for id_ in asked.ids:
            tree = self.trees[int(id_[:8], 16)]
            found.append(
                Provider(id=id_, name=tree.host, parent=None, root=id_, generation=1, traits=TRAITS,
                         inventories=tree.providers[0].inventories, cell=tree.cell, agent=tree.agent,
                         host=tree.host)
            )  # fmt: skip
        return ProvidersFound(providers=tuple(found))


def amounts_of(vcpus: int, gib: int) -> dict[str, int]:
    return {"VCPU": vcpus, "MEMORY_MB": 1024 * gib, "DISK_GB": 1}


def _stands(build: str, cell: str, selection: Selection, flavor: Flavor) -> BuildStands:
    spec = BuildSpec(flavor=flavor)
    placed = BuildPlaced(
        build=build, request=build, cell=cell, chosen=selection, generation=1, spec=spec
    )  # fmt: skip
    return BuildStands(build=build, status="active", placed=placed, host=selection.host, attempt=1,
                       generation=1, chosen=selection, spec=spec)  # fmt: skip


class FilledPlacement(InstantPlacement):
    def __init__(self, cloud: FilledCloud) -> None:
        super().__init__(Index())
        self.cloud = cloud
        for tree in cloud.trees:
            self.index.put(tree, 0)

    def queries(self) -> PlacementQueries:
        cloud = self.cloud
        return replace(super().queries(), providers=cloud.providers, allocations=cloud.allocations)


async def planner(
    cloud: FilledCloud, clock: Clock, placement: FilledPlacement, profile: str
) -> tuple[RoomPlanner, WhatIfs]:
    """Return a planner of moves whose scheduler knows the shapes of SIZES as equally usual."""
    queries, source = placement.queries(), IndexedSource(placement)
    options = SchedulerOptions(policy=ChoicePolicy.from_names(profile=profile))
    scheduler = plain_scheduler(source, queries, clock, options, PARTS)
    await scheduler.opened()
    for tree in cloud.trees:
        report = HostReported(cell=tree.cell, agent=tree.agent, sequence=1, period=PERIOD,
                              hosts=(HostState(root=tree.root, host=tree.host, load=0.1),))  # fmt: skip
        await scheduler.handle(report)
    cells = CellQueries(builds=cloud.builds_of, instances=cloud.instances)
    groups = [(ResourceGroup(resources=amounts_of(*size)),) for size in SIZES]
    shapes = [shape_of(FindCandidates(groups=of_shape)) for of_shape in groups]
    scheduler.demand.count([(shape, 1) for shape in shapes], clock.now())
    lookups = MoveLookups(source, scheduler.ending, queries, cells, placement.unused)
    unused: Any = None  # the planner does not start moves, which would need these arguments
    what_ifs = WhatIfs(scheduler)
    placing = MovePlacing(scheduler, lookups, unused, unused)
    return RoomPlanner(what_ifs, placing, cells, JointPlacing()), what_ifs
