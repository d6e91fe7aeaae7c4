"""The evacuation of lost hosts into slots of failover headroom, by the functions with which schedulers choose
slots and placement claims them.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from random import Random

from bus.claims import Choice, Claimed, ClaimRequested, ConsumerClaim
from bus.queries import Candidate, FindCandidates
from bus.requests import Flavor, ResourceGroup
from bus.sql.database import Database
from bus.vocabulary import Allocations, totals
from features.reservations.core.drawing import draw_of, drawing_on
from features.reservations.core.forms import form_in
from features.reservations.messages import Reservation, ReservedSlot, slot_drawn
from features.reservations.rule import ReservationRule
from features.reservations.slots import ReservationWorld, SlotRecord
from placement_worker.extension import Book, ClaimWorld, Holder, Index
from placement_worker.testing import ClaimedProvider, IndexedSource, Stock, claim
from scheduler_worker.core.extension import Alternative
from scheduler_worker.testing import ALL_WAYS, choices_of
from tests.support.ids import uid
from tests.support.index_source import FilledMemory
from tests.support.rule_builders import a_wish

HEADROOM = Reservation(id=uid(1, "7"), name="headroom", flavor=Flavor(name="any"), use="failover")

RULE = ReservationRule(Database("sqlite+aiosqlite://"), Book())

Amounts = Mapping[str, int]
Held = tuple[str, Allocations]  # root and allocations


@dataclass(frozen=True)
class HostsToLose:
    """Instances and slots of a cloud, the free amounts of its hosts, and which host accepts an instance."""

    index: Index  # of the same hosts, instances and slots
    free: Mapping[str, Mapping[str, Amounts]]  # root → provider
    instances: Mapping[str, Held]
    slots: Mapping[str, Held]
    accepts: Callable[[str, str], bool]  # whether an instance may be on a host (root)
    groups: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # member → group, limit per host
    # group → root → members, also members for which a holder consumer has allocations there
    members: Mapping[str, Mapping[str, Set[str]]] = field(default_factory=dict)
    # instance → its query for candidates; by default its amounts in one group without suffix
    questions: Mapping[str, FindCandidates] = field(default_factory=dict)

    def evacuate(self, lost: frozenset[str], chance: Random) -> str:
        """Evacuate lost hosts: the instances in a random sequence, each to a random host that accepts it of
        those that the scheduler permits. Return the first instance for which there is none, or "".
        """
        world, moved, source = self._world(), dict[str, str](), IndexedSource(FilledMemory(self.index))
        forms = {slot: form_in(source, held) for slot, (_, held) in self.slots.items()}
        moving = [id_ for id_, (root, _) in self.instances.items() if root in lost]
        chance.shuffle(moving)
        for number, id_ in enumerate(moving):
            form = form_in(source, self.instances[id_][1])
            like = {slot for slot, of_slot in forms.items() if of_slot == form}
            for alike in (like, None):
                wish = self._wish(id_, alike, lost, world)
                roots = [
                    root
                    for root in wish.question.roots
                    if root in self.free and self.accepts(id_, root) and self._is_apart(id_, root, moved)
                ]
                if ways := self._ways(source, wish, roots, chance):
                    break
            else:
                return id_
            choices: tuple[Choice, ...] = choices_of(wish, ways, {})
            keep, begins = uid(number, "e"), uid(number, "f")
            world.holders |= {name: Holder(name, 1) for name in (keep, begins)}
            move = ConsumerClaim(consumer=id_, generation=1, choices=choices, keep=keep, begins=begins)
            [result] = claim(ClaimRequested(claims=(move,)), world) or (None,)
            if not isinstance(result, Claimed):
                return id_
            moved[id_] = ways[0].root
            if slot_drawn(choices[0]) is None:
                source.packing.claim(choices[0].allocations)
        return ""

    def _wish(
        self, instance: str, alike: Set[str] | None, lost: frozenset[str], world: ClaimWorld
    ) -> Alternative:
        slots = [
            ReservedSlot(consumer=slot, allocations=held, held=world.holders[slot].held, roots=(root,))
            for slot, (root, held) in self.slots.items()
            if root not in lost
        ]
        of_totals = ResourceGroup(resources=totals(self.instances[instance][1]))
        question = self.questions.get(instance) or FindCandidates(groups=(of_totals,))
        return drawing_on(replace(a_wish(), question=question), HEADROOM, slots, 1.0, alike)

    def _is_apart(self, instance: str, root: str, moved: Mapping[str, str]) -> bool:
        group, most = self.groups.get(instance, ("", 0))
        if not group:
            return True
        there = {id_ for id_, on in moved.items() if on == root and self.groups.get(id_, ("",))[0] == group}
        return len(there.union(self.members[group].get(root, ())) - {instance}) < most

    def _world(self) -> ClaimWorld:
        everything = {**self.instances, **self.slots}
        used: dict[str, dict[str, int]] = {id_: {} for of_host in self.free.values() for id_ in of_host}
        for _, held in everything.values():
            for provider, amounts in held.items():
                for name, amount in amounts.items():
                    used[provider][name] = used[provider].get(name, 0) + amount
        providers: dict[str, ClaimedProvider | None] = {}
        for root, of_host in self.free.items():
            for provider, free in of_host.items():
                stocks = {
                    name: Stock(
                        0, left + used[provider].get(name, 0), used[provider].get(name, 0), 0, 1, 1_000_000, 1
                    )
                    for name, left in free.items()
                }
                shape = self.index.rows[provider].shape
                providers[provider] = ClaimedProvider(1, provider, root, shape, 1, 1, stocks)
        records = {slot: SlotRecord(slot, HEADROOM.id, "", held) for slot, (_, held) in self.slots.items()}
        holders = {id_: Holder(id_, 1, 1, held) for id_, (_, held) in everything.items()}
        reserved = ReservationWorld(1.0, {HEADROOM.id: HEADROOM}, records, records.keys())
        return ClaimWorld(providers, holders, {}, rules=(RULE,), state={ReservationRule: reserved})

    def _ways(
        self, source: IndexedSource, wish: Alternative, roots: Sequence[str], chance: Random
    ) -> Sequence[Candidate]:
        """Return a random candidate on a random host that has any, with slots counted as free."""
        draw = draw_of(wish)
        assert draw is not None
        slots = draw.slots
        roots = chance.sample(roots, len(roots))
        if roots and len(self.free[roots[0]]) == 1 and len(wish.question.groups) == 1:
            root = roots[0]  # its slot covers the query
            return [Candidate(root, root, "c1", "agent", "", {root: wish.asked}, {}, {}, {}, ())]
        for slot in slots:
            source.packing.release(slot.held)
        search = source.search(wish.question) if roots else None
        found: list[Candidate] = []
        for root in roots:
            within = [slot.held for slot in slots if root in slot.roots]
            position = source.position(root)
            if search is not None and position is not None and position in search.positions:
                found = [*search.ways(position, ALL_WAYS, within)]
            if found:
                break
        for slot in slots:
            source.packing.claim(slot.held)
        return [chance.choice(found)] if found else ()
