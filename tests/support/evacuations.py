"""The evacuation of lost hosts into slots of failover headroom, by the functions with which schedulers choose
slots and placement claims them.
"""

from collections.abc import Callable, Hashable, Mapping, Set
from dataclasses import dataclass, field, replace
from random import Random

from bus.claims import Choice, Claimed, ClaimRequested, ConsumerClaim
from bus.queries import Candidate, FindCandidates
from bus.requests import Flavor, ResourceGroup
from bus.reservations import Reservation, ReservedSlot
from placement_worker.core.capacity import claim
from placement_worker.core.claim_world import ClaimedProvider, ClaimWorld, Holder, Stock
from placement_worker.core.reservations import ReservationWorld, SlotRecord
from scheduler_worker.core.drawing import SlotAssignments, drawing_on
from tests.support.ids import uid
from tests.support.rule_builders import a_wish

HEADROOM = Reservation(id=uid(1, "7"), name="headroom", flavor=Flavor(name="any"), use="failover")

Amounts = Mapping[str, int]
Held = tuple[str, Amounts]  # root and amounts


@dataclass(frozen=True)
class HostsToLose:
    """Instances and slots of a cloud, the free amounts of its hosts, and which host accepts an instance."""

    free: Mapping[str, Amounts]  # by root
    instances: Mapping[str, Held]
    slots: Mapping[str, Held]
    kinds: Mapping[str, Hashable]  # root → type of the host
    accepts: Callable[[str, str], bool]  # whether an instance may be on a host (root)
    groups: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # member → group, limit per host
    # group → root → members, also members for which a holder consumer has allocations there
    members: Mapping[str, Mapping[str, Set[str]]] = field(default_factory=dict)

    def evacuate(self, lost: frozenset[str], chance: Random) -> str:
        """Evacuate lost hosts: the instances in a random sequence, each to a random host that accepts it of
        those that the scheduler permits. Return the first instance for which there is none, or "".
        """
        world, moved = self._world(), dict[str, str]()
        moving = [id_ for id_, (root, _) in self.instances.items() if root in lost]
        chance.shuffle(moving)
        left = [(slot, root, amounts) for slot, (root, amounts) in self.slots.items() if root not in lost]
        for number, id_ in enumerate(moving):
            size = dict(self.instances[id_][1])
            slots = [
                ReservedSlot(
                    consumer=slot,
                    allocations={root: dict(amounts)},
                    held=world.holders[slot].held,
                    roots=(root,),
                )
                for slot, root, amounts in left
            ]
            question = FindCandidates(groups=(ResourceGroup(resources=size),))
            leaves = self.kinds[self.instances[id_][0]]
            alike = {root for root, kind in self.kinds.items() if kind == leaves}
            for preferred in (alike, None):
                wish = drawing_on(replace(a_wish(), question=question), HEADROOM, slots, 1.0, preferred)
                roots = [
                    root
                    for root in wish.question.roots
                    if root in self.free and self.accepts(id_, root) and self._is_apart(id_, root, moved)
                ]
                if roots:
                    break
            else:
                return id_
            root = chance.choice(roots)
            way = Candidate(root, root, "c1", "agent", "", {root: size}, {root: 1}, {}, {}, ())
            choices: tuple[Choice, ...] = SlotAssignments().choices(wish.draw, [way])
            keep, begins = uid(number, "e"), uid(number, "f")
            world.holders |= {name: Holder(name, 1) for name in (keep, begins)}
            move = ConsumerClaim(consumer=id_, generation=1, choices=choices, keep=keep, begins=begins)
            results = claim(ClaimRequested(claims=(move,)), world) or ()
            if not all(isinstance(result, Claimed) for result in results):
                return id_
            moved[id_] = root
        return ""

    def _is_apart(self, instance: str, root: str, moved: Mapping[str, str]) -> bool:
        group, most = self.groups.get(instance, ("", 0))
        if not group:
            return True
        there = {id_ for id_, on in moved.items() if on == root and self.groups.get(id_, ("",))[0] == group}
        return len(there.union(self.members[group].get(root, ())) - {instance}) < most

    def _world(self) -> ClaimWorld:
        everything = {**self.instances, **self.slots}
        used: dict[str, dict[str, int]] = {root: {} for root in self.free}
        for root, amounts in everything.values():
            for name, amount in amounts.items():
                used[root][name] = used[root].get(name, 0) + amount
        providers: dict[str, ClaimedProvider | None] = {}
        for root, free in self.free.items():
            stocks = {
                name: Stock(0, amount + used[root].get(name, 0), used[root].get(name, 0), 0, 1, 1_000_000, 1)
                for name, amount in free.items()
            }
            providers[root] = ClaimedProvider(1, root, root, 1, 1, 1, stocks)
        records = {
            slot: SlotRecord(slot, HEADROOM.id, "", {root: dict(amounts)})
            for slot, (root, amounts) in self.slots.items()
        }
        holders = {id_: Holder(id_, 1, 1, {root: dict(held)}) for id_, (root, held) in everything.items()}
        reserved = ReservationWorld(1.0, {HEADROOM.id: HEADROOM}, records, records.keys())
        return ClaimWorld(providers, holders, {}, reserved=reserved)
