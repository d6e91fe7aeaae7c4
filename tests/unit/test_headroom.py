"""Failover headroom: planned, and tried by the loss of every host and rack after every commit."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from placement_worker.core import headroom as planner
from placement_worker.core.headroom import HeadroomHost, HeadroomState, HeldSize, headroom
from tests.support.evacuations import Held, HostsToLose
from tests.support.ids import uid

COMMITS = 25
SIZES = ({"VCPU": 1, "MEMORY_MB": 2}, {"VCPU": 2, "MEMORY_MB": 2}, {"VCPU": 4, "MEMORY_MB": 8}, {"VCPU": 3})
CAPACITY = {"VCPU": 12, "MEMORY_MB": 24}


@dataclass
class CloudOfHosts:
    """A cloud of hosts in racks with instances and slots, changed by one commit at a time."""

    chance: random.Random
    racks: dict[str, str] = field(default_factory=dict)  # root → rack
    instances: dict[str, Held] = field(default_factory=dict)
    slots: dict[str, Held] = field(default_factory=dict)
    last: int = 0

    def new_id(self, kind: str) -> str:
        self.last += 1
        return uid(self.last, kind)

    def free(self, root: str) -> dict[str, int]:
        left = dict(CAPACITY)
        for on, amounts in (*self.instances.values(), *self.slots.values()):
            if on == root:
                for name, amount in amounts.items():
                    left[name] -= amount
        return left

    def fits(self, root: str, amounts: Mapping[str, int]) -> bool:
        free = self.free(root)
        return all(free[name] >= amount for name, amount in amounts.items())

    def state(self) -> HeadroomState:
        free = {root: self.free(root) for root in self.racks}
        for root, amounts in self.slots.values():
            for name, amount in amounts.items():
                free[root][name] += amount
        domains = {f"host {root}": frozenset({root}) for root in self.racks}
        for rack in set(self.racks.values()):
            domains[f"rack {rack}"] = frozenset(root for root, of in self.racks.items() if of == rack)
        return HeadroomState(
            hosts={root: HeadroomHost(root, "kind", free[root]) for root in self.racks},
            instances=_sizes(self.instances),
            slots=_sizes(self.slots),
            domains=domains,
        )

    def commit(self) -> None:
        """Boot, delete, resize the cloud, or let the controller adjust the slots."""
        match self.chance.choice(("boot", "boot", "boot", "delete", "host", "adjust", "adjust")):
            case "boot":
                size = self.chance.choice(SIZES)
                if roots := [root for root in self.racks if self.fits(root, size)]:
                    self.instances[self.new_id("b")] = self.chance.choice(roots), size
            case "delete" if self.instances:
                del self.instances[self.chance.choice(sorted(self.instances))]
            case "host":
                self.racks[self.new_id("a")] = f"r{self.chance.randrange(3)}"
            case "adjust":
                self.adjust()

    def adjust(self) -> None:
        plan = headroom(self.state())
        for slot in plan.remove:
            del self.slots[slot]
        for root, size in plan.add:
            assert self.fits(root, dict(size)), "a slot is added where there is no free capacity"
            self.slots[self.new_id("d")] = root, dict(size)
        assert headroom(self.state()).holds == (not plan.lacking)

    def evacuates(self, lost: frozenset[str]) -> bool:
        free = {root: self.free(root) for root in self.racks}
        return not HostsToLose(free, self.instances, self.slots).evacuate(lost, self.chance)


def _sizes(held: Mapping[str, Held]) -> list[HeldSize]:
    return [HeldSize(id_, root, tuple(sorted(amounts.items()))) for id_, (root, amounts) in held.items()]


def run(seed: int) -> tuple[int, int, int]:
    """Return the numbers of commits, of commits after which headroom held, and of losses tried."""
    chance = random.Random(seed)
    cloud = CloudOfHosts(chance)
    for _ in range(chance.randrange(2, 7)):
        cloud.racks[cloud.new_id("a")] = f"r{chance.randrange(3)}"
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
    lose_everything_of(range(40))


@pytest.mark.soak
def test_when_headroom_holds_any_host_and_any_rack_can_be_lost_in_1000_clouds() -> None:
    lose_everything_of(range(1000))


def held(number: int, root: str, **amounts: int) -> HeldSize:
    return HeldSize(uid(number), root, tuple(sorted(amounts.items())))


def a_state(
    *instances: HeldSize, slots: tuple[HeldSize, ...] = (), free: int = 8, hosts: int = 3
) -> HeadroomState:
    roots = ("x", "y", "z")[:hosts]
    return HeadroomState(
        {root: HeadroomHost(root, "kind", {"VCPU": free}) for root in roots},
        instances,
        slots,
        {root: frozenset({root}) for root in roots},
    )


def test_one_slot_serves_the_loss_of_each_of_several_other_hosts() -> None:
    plan = headroom(a_state(held(1, "x", VCPU=4), held(2, "y", VCPU=4)))
    assert not plan.holds and not plan.lacking
    assert [size for _, size in plan.add] == [(("VCPU", 4),)]
    assert plan.add[0][0] == "z"


def test_slots_that_are_needed_no_more_are_removed() -> None:
    slots = (held(8, "y", VCPU=4), held(9, "z", VCPU=4), held(7, "z", VCPU=2))
    plan = headroom(a_state(held(1, "x", VCPU=4), slots=slots))
    assert plan.holds and not plan.add
    assert sorted(plan.remove) == [uid(7), uid(8)]


def test_a_slot_on_the_host_that_fails_does_not_count() -> None:
    assert not headroom(a_state(held(1, "x", VCPU=4), slots=(held(9, "x", VCPU=4),))).holds
    assert headroom(a_state(held(1, "x", VCPU=4), slots=(held(9, "y", VCPU=4),))).holds


def test_headroom_without_free_capacity_is_lacking_with_the_reason() -> None:
    plan = headroom(a_state(held(1, "x", VCPU=4), free=3))
    assert plan.lacking == ("x: no host outside of it has free capacity for 4 VCPU",)


def test_an_instance_that_headroom_cannot_cover_makes_it_false() -> None:
    state = a_state(HeldSize(uid(1), "x", (), "it uses several providers"))
    assert not headroom(state).holds
    assert headroom(state).lacking == ("1 instances: it uses several providers",)


def test_the_replay_finds_a_planner_that_ignores_where_slots_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner._ClassCounts, "lacks", lambda self, domain: self.total < self.needed[domain])
    with pytest.raises(AssertionError, match="does not evacuate"):
        for seed in range(100):
            run(seed)
