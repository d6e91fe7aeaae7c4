"""Failover headroom: planned, and tried by the loss of every host and rack after every commit."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import pytest
from msgspec import structs

from bus.packing import ProviderPacking
from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from bus.vocabulary import covers
from features.headroom import plan as planner
from features.headroom.plan import ApartGroup, HeadroomHost, HeadroomState, HeldSize, headroom
from features.headroom.tests.support.evacuations import Held, HostsToLose
from features.reservations.core.forms import kind_of, node_of
from placement_worker.extension import Index, ProviderState
from placement_worker.testing import IndexedSource
from tests.support.ids import uid
from tests.support.index_source import FilledMemory
from tests.support.provider_trees import an_index, state, tree

COMMITS = 25
SIZES = ({"VCPU": 1, "MEMORY_MB": 2}, {"VCPU": 2, "MEMORY_MB": 2}, {"VCPU": 4, "MEMORY_MB": 8}, {"VCPU": 3})
CAPACITY = {"VCPU": 12, "MEMORY_MB": 24}
GROUPS = {"apart": 1, "two by two": 2}  # anti-affinity groups, with the members that one host may have
A, B = "CUSTOM_A", "CUSTOM_B"
# the traits of the devices of a host with two NUMA cells; a string for each device, a list for each cell
DEVICES = (([A, B], [A]), ([A], [A, B]), ([A, A], [B]))
LITTLE = ResourceGroup(resources={"MEMORY_MB": 2})


def in_a_cell(suffix: str, **resources: int) -> ResourceGroup:
    return ResourceGroup(suffix=suffix, resources=resources)


def with_devices(cpus: int, count: int, *required: str) -> FindCandidates:
    device = ResourceGroup(suffix="_gpu", resources={"CUSTOM_GPU": count}, required=required)
    return FindCandidates(groups=(LITTLE, in_a_cell("_0", VCPU=cpus), device))


NESTED = (  # queries for candidates that use several providers
    FindCandidates(groups=(ResourceGroup(resources={"VCPU": 2, "MEMORY_MB": 2}),)),
    FindCandidates(groups=(LITTLE, in_a_cell("_0", VCPU=2), in_a_cell("_1", VCPU=1)), isolated=("_0", "_1")),
    FindCandidates(groups=(LITTLE, in_a_cell("_0", VCPU=2), in_a_cell("_1", VCPU=1))),
    with_devices(1, 1),
    with_devices(1, 1, A),
    with_devices(1, 1, B),
    structs.replace(with_devices(1, 1, A), same_subtree=(("_0", "_gpu"),)),
    with_devices(2, 2),
)


@dataclass
class CloudOfHosts:
    """A cloud of hosts in racks with instances and slots, changed by one commit at a time."""

    chance: random.Random
    racks: dict[str, str] = field(default_factory=dict)  # root → rack
    trees: dict[str, tuple[ProviderState, ...]] = field(default_factory=dict)  # root → its providers, unused
    choosy: set[str] = field(default_factory=set)  # instances that only hosts of the same kind accept
    instances: dict[str, Held] = field(default_factory=dict)
    questions: dict[str, FindCandidates] = field(default_factory=dict)  # by instance
    slots: dict[str, Held] = field(default_factory=dict)
    groups: dict[str, tuple[str, int]] = field(default_factory=dict)  # member → anti-affinity group, most
    last: int = 0

    def new_id(self, kind: str) -> str:
        self.last += 1
        return uid(self.last, kind)

    def used(self, held: Iterable[Held]) -> dict[str, Counter[str]]:
        used: dict[str, Counter[str]] = defaultdict(Counter)
        for _, allocations in held:
            for provider, amounts in allocations.items():
                used[provider].update(amounts)
        return used

    def free(self, held: Iterable[Held]) -> dict[str, dict[str, dict[str, int]]]:
        used = self.used(held)
        return {
            root: {
                each.uuid: {
                    name: stock.total - used[each.uuid][name] for name, stock in each.inventories.items()
                }
                for each in providers
            }
            for root, providers in self.trees.items()
        }

    def index(self) -> Index:
        used = self.used([*self.instances.values(), *self.slots.values()])
        return an_index(
            [
                tree(
                    *(
                        replace(each, used={name: used[each.uuid][name] for name in each.inventories})
                        for each in some
                    )
                )
                for some in self.trees.values()
            ]
        )

    def state(self) -> HeadroomState:
        free, members, index = self.free(self.instances.values()), self.members(), self.index()
        domains = {f"host {root}": frozenset({root}) for root in self.racks}
        for rack in set(self.racks.values()):
            domains[f"rack {rack}"] = frozenset(root for root, of in self.racks.items() if of == rack)
        nodes = {
            root: node_of([index.rows[each.uuid] for each in some]) if len(some) > 1 else None
            for root, some in self.trees.items()
        }
        return HeadroomState(
            hosts={
                root: HeadroomHost(root, kind_of(index.rows[root], {}), tree=nodes[root])
                for root in self.racks
            },
            packing=ProviderPacking({id_: amounts for of in free.values() for id_, amounts in of.items()}),
            instances=[replace(each, group=self.group(each.consumer)) for each in _sizes(self.instances)],
            slots=_sizes(self.slots),
            domains=domains,
            groups={group: ApartGroup(group, most, members.get(group, {})) for group, most in GROUPS.items()},
        )

    def group(self, instance: str) -> str:
        return self.groups.get(instance, ("", 0))[0]

    def members(self) -> dict[str, dict[str, set[str]]]:
        found: dict[str, dict[str, set[str]]] = {}
        for instance, (root, _) in self.instances.items():
            if group := self.group(instance):
                found.setdefault(group, {}).setdefault(root, set()).add(instance)
        return found

    def add_host(self) -> None:
        traits = self.chance.choice(((), (), ("CUSTOM_FAST",)))
        if self.nested and self.chance.random() < 0.8:
            layout = self.chance.choice(DEVICES)
            number = self.last + 1
            providers = [state(number, None, {"MEMORY_MB": 24}, traits=traits)]
            for devices in layout:
                cell = number = number + 1
                providers.append(state(cell, providers[0].id - 1, {"VCPU": 6}))
                for trait in devices:
                    number += 1
                    providers.append(state(number, cell, {"CUSTOM_GPU": 2}, traits=(trait,)))
            self.last = number
        else:
            self.last += 1
            providers = [state(self.last, None, dict(CAPACITY), traits=traits)]
        root = providers[0].uuid
        self.trees[root] = tuple(providers)
        self.racks[root] = f"r{self.chance.randrange(3)}"

    @cached_property
    def nested(self) -> bool:
        """Return whether most hosts of this cloud have NUMA cells with devices."""
        return self.chance.random() < 0.5

    def commit(self) -> None:
        """Boot, delete, resize the cloud, or let the controller adjust the slots."""
        match self.chance.choice(("boot", "boot", "boot", "delete", "host", "adjust", "adjust")):
            case "boot":
                self.boot()
            case "delete" if self.instances:
                del self.instances[self.chance.choice(sorted(self.instances))]
            case "host":
                self.add_host()
            case "adjust":
                self.adjust()

    def boot(self) -> None:
        question = FindCandidates(groups=(ResourceGroup(resources=self.chance.choice(SIZES)),))
        if self.nested and self.chance.random() < 0.8:
            question = self.chance.choice(NESTED)
        group = self.chance.choice(sorted(GROUPS)) if self.chance.random() < 0.3 else ""
        there, most = self.members().get(group, {}), GROUPS.get(group, 99)
        open_ = [root for root in self.racks if len(there.get(root, ())) < most]
        search = IndexedSource(FilledMemory(self.index())).search(question)
        ways = [way for at in search.positions.tolist() for way in search.ways(at, 64) if way.root in open_]
        if not ways:
            return
        instance, way = self.new_id("b"), self.chance.choice(ways)
        self.instances[instance] = way.root, way.allocations
        self.questions[instance] = question
        if self.chance.random() < 0.5:
            self.choosy.add(instance)
        if group:
            self.groups[instance] = group, most

    def adjust(self) -> None:
        plan = headroom(self.state())
        for slot in plan.remove:
            del self.slots[slot]
        for root, allocations in plan.add:
            free = self.free([*self.instances.values(), *self.slots.values()])[root]
            assert covers(free, allocations), "a slot is added where there is no free capacity"
            self.slots[self.new_id("d")] = root, allocations
        assert headroom(self.state()).holds == (not plan.lacking)

    def evacuates(self, lost: frozenset[str]) -> bool:
        free = self.free([*self.instances.values(), *self.slots.values()])
        hosts = HostsToLose(
            self.index(), free, self.instances, self.slots, self.accepts, self.groups, self.members(),
            self.questions,
        )  # fmt: skip
        return not hosts.evacuate(lost, self.chance)

    def accepts(self, instance: str, root: str) -> bool:
        present = self.instances[instance][0]
        same = self.trees[present][0].traits == self.trees[root][0].traits
        return same or instance not in self.choosy


def _sizes(held: Mapping[str, Held]) -> list[HeldSize]:
    return [HeldSize(id_, root, allocations) for id_, (root, allocations) in held.items()]


def run(seed: int) -> tuple[int, int, int]:
    """Return the numbers of commits, of commits after which headroom held, and of losses tried."""
    chance = random.Random(seed)
    cloud = CloudOfHosts(chance)
    for _ in range(chance.randrange(2, 7)):
        cloud.add_host()
    kept = losses = 0
    for _ in range(COMMITS):
        cloud.commit()
        state = cloud.state()
        if headroom(state).holds:
            kept += 1
            for domain, lost in state.domains.items():
                losses += 1
                assert cloud.evacuates(lost), f"seed {seed}: {domain} does not evacuate"
    return COMMITS, kept, losses


def lose_everything_of(seeds: range) -> None:
    commits, kept, losses = (sum(of_all) for of_all in zip(*map(run, seeds), strict=True))
    assert commits * 0.15 < kept < commits, "headroom holds after some commits, and not after others"
    assert losses > kept


def test_when_headroom_holds_any_host_and_any_rack_can_be_lost() -> None:
    lose_everything_of(range(8))


@pytest.mark.soak
def test_when_headroom_holds_any_host_and_any_rack_can_be_lost_in_1000_clouds() -> None:
    lose_everything_of(range(1000))


def held(number: int, root: str, **amounts: int) -> HeldSize:
    return HeldSize(uid(number), root, {root: amounts})


def a_state(*instances: HeldSize, slots: tuple[HeldSize, ...] = (), hosts: int = 3) -> HeadroomState:
    roots = ("x", "y", "z")[:hosts]
    return HeadroomState(
        {root: HeadroomHost(root, "kind") for root in roots},
        ProviderPacking({root: {"VCPU": 8} for root in roots}),
        instances,
        slots,
        {root: frozenset({root}) for root in roots},
    )


def test_one_slot_serves_the_loss_of_each_of_several_other_hosts() -> None:
    plan = headroom(a_state(held(1, "x", VCPU=4), held(2, "y", VCPU=4)))
    assert not plan.holds and not plan.lacking
    assert plan.add == (("z", {"z": {"VCPU": 4}}),)


def test_slots_that_are_needed_no_more_are_removed() -> None:
    slots = (held(8, "y", VCPU=4), held(9, "z", VCPU=4), held(7, "z", VCPU=2))
    plan = headroom(a_state(held(1, "x", VCPU=4), slots=slots))
    assert plan.holds and not plan.add
    assert sorted(plan.remove) == [uid(7), uid(8)]


def test_an_instance_that_headroom_cannot_cover_makes_it_false() -> None:
    state = a_state(HeldSize(uid(1), "x", {"x": {"VCPU": 1}}, "it uses a pool"))
    assert not headroom(state).holds
    assert headroom(state).lacking == ("1 instances: it uses a pool",)


def test_the_replay_finds_a_planner_that_ignores_where_slots_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner._ClassCounts, "lacks", lambda self, domain: self.total < self.needed[domain])
    with pytest.raises(AssertionError, match="does not evacuate"):
        for seed in range(100):
            run(seed)


def test_a_host_gets_no_further_slot_that_cannot_serve_members_of_an_anti_affinity_group() -> None:
    """Each of both members on x needs a host of its own; y is preferred, because z has more instances."""
    members = [replace(held(number, "x", VCPU=1), group="g") for number in (1, 2)]
    others = [held(number, "z", VCPU=1) for number in (3, 4, 5)]
    group = ApartGroup("web", 2, {"x": {each.consumer for each in members}})
    plan = headroom(replace(a_state(*members, *others), groups={"g": group}))
    assert sorted(root for root, _ in plan.add) == ["x", "y", "y", "z"] and not plan.lacking
    without_z = headroom(replace(a_state(*members, hosts=2), groups={"g": group}))
    where = "no further host outside of it and without members of server group web"
    assert [root for root, _ in without_z.add] == ["y", "y"]
    assert without_z.lacking == (f"x: {where} has free capacity for 1 VCPU",)
