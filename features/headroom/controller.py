"""Keeps failover headroom: after a change it computes the needed slots, and claims or releases slots.

The slots are part of a reservation for failover, and evacuations draw from them. Ids of slots follow from
host and allocations, so several placement processes that add the same slot claim it once.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid5

from prometheus_client import Gauge

from bus.claims import Choice, Claimed, ClaimRequested, ConsumerClaim, ReleaseRequested
from bus.host_health import CLOSED
from bus.packing import ProviderPacking
from bus.parts import ClaimParts
from bus.resources import is_bare_metal
from bus.vocabulary import UNSAID_ID, Allocations
from features.headroom import held_sizes
from features.headroom.held_sizes import HeadroomJoins, HeldAmounts
from features.headroom.messages import FindHeadroom, Headroom, HeadroomFound
from features.headroom.plan import HeadroomHost, HeadroomPlan, HeadroomState, HeldSize, headroom
from features.reservations import store as stored
from features.reservations.core.forms import kind_of, node_of
from features.reservations.messages import (
    FAILOVER,
    RESERVATION,
    FindReservations,
    Reservation,
    SlotClaim,
    slot_drawn,
)
from placement_worker.extension import ClaimOperations, Index, PlacementOperations

HOST = "host"  # the level of domains that are single hosts
KEPT = Gauge("berth_headroom_kept", "1 if every headroom covers any one failed domain, or none is set")
SLOTS_AT_ONCE = 200

log = logging.getLogger(__name__)


@dataclass(eq=False)
class HeadroomController(PlacementOperations):
    """Adjusts the slots of failover reservations that name levels, after changes of hosts or instances."""

    claims: ClaimOperations
    joins: HeadroomJoins
    kept: bool | None = field(default=None, init=False)  # what the metric shows; None: no slots were adjusted
    _changed: bool = field(default=True, init=False)
    _lost: dict[str, float] = field(default_factory=dict, init=False)  # reservation → since when it is lost
    _last: Sequence[Reservation] = field(default=(), init=False)  # reservations at the last call of `adjust`

    def __post_init__(self) -> None:
        self.log.memory.watch(lambda *_: self._note_change())

    def _note_change(self) -> None:
        self._changed = True

    async def find(self, query: FindHeadroom) -> HeadroomFound:
        """Return each headroom with its present state, without adjusting it, and why it would end after the
        query's claims.
        """
        managed = await self._managed()
        held = await self._held() if managed else HeldAmounts()
        found = [await self._found(reservation, held, query.claims) for reservation in managed]
        return HeadroomFound(headrooms=tuple(found))

    async def _found(
        self, reservation: Reservation, held: HeldAmounts, claims: Sequence[ConsumerClaim]
    ) -> Headroom:
        state = await self._state(reservation, held)
        plan = await _plan(state)
        lacking_then: tuple[str, ...] = ()
        if claims and not plan.lacking:
            lacking_then = (await _plan(await self._after(state, reservation, held, claims))).lacking
        return Headroom(
            reservation=reservation,
            kept=plan.holds,
            slots=len(state.slots),
            domains=len(state.domains),
            instances=len(state.instances),
            lacking=plan.lacking,
            unlabelled=_levels_without_domains(reservation.levels, state.domains),
            lacking_then=lacking_then,
            lost_since=self._lost_since(reservation, plan),
        )

    def _lost_since(self, reservation: Reservation, plan: HeadroomPlan) -> float:
        """Return since when this process has known that a headroom is lost; 0: it is kept."""
        if plan.holds:
            self._lost.pop(reservation.id, None)
            return 0.0
        return self._lost.setdefault(reservation.id, self.clock.now())

    async def adjust(self) -> None:
        """Claim missing slots and release surplus slots, if something has changed since the last call."""
        managed = await self._managed()
        if not self._changed and managed == self._last:
            return
        self._changed, self._last = False, managed
        try:
            plans = [await self._adjusted(each) for each in managed]
            for each, plan in zip(managed, plans, strict=True):
                self._lost_since(each, plan)
        except BaseException:
            self._changed = True
            raise
        self.kept = all(plan.holds for plan in plans)
        KEPT.set(self.kept)

    async def _adjusted(self, reservation: Reservation) -> HeadroomPlan:
        """Claim missing slots of a reservation and release surplus slots; return the plan of the state that
        results.
        """
        await self.log.memory.fresh()
        plan = await _plan(await self._state(reservation, await self._held()))
        if plan.remove:
            await self._remove(plan.remove)
        for at in range(0, len(plan.add), SLOTS_AT_ONCE):
            await self._add(reservation, plan.add[at : at + SLOTS_AT_ONCE])
        if plan.add or plan.remove:
            plan = await _plan(await self._state(reservation, await self._held()))
        return plan

    async def _managed(self) -> list[Reservation]:
        now = self.clock.now()
        async with self.database.read() as tx:
            found = await stored.find(tx, FindReservations(use=FAILOVER))
        return [each for each in found if each.levels and each.state(now) == "active"]

    async def _held(self) -> HeldAmounts:
        async with self.database.read() as tx:
            return await held_sizes.read(tx, self.joins.groups)

    async def _state(self, reservation: Reservation, amounts: HeldAmounts) -> HeadroomState:
        """Return the present state of a headroom; `amounts` has what consumers hold."""
        # in a thread, as in `_plan`: for 100,000 instances it takes a second
        held = await asyncio.to_thread(held_sizes.sizes, amounts, reservation.id)
        index, (instances, slots, groups) = self.log.memory.index, held
        instances = [each for each in instances if not _on_bare_metal(index, each)]
        levels = reservation.levels
        unknown = _unlabelled(index, levels, instances)
        domains = _domains(index, levels)
        return HeadroomState(*_hosts(index, slots), instances, slots, domains, unknown, groups)

    async def _after(
        self,
        state: HeadroomState,
        reservation: Reservation,
        held: HeldAmounts,
        claims: Sequence[ConsumerClaim],
    ) -> HeadroomState:
        """Return the state of a headroom after hypothetical claims; `state` and `held` are from before them.
        The packing of `state` is changed.

        Only the claiming instances, the members of their groups and the preempted instances change.
        """
        index = self.log.memory.index
        async with self.database.read() as tx:
            claimed = await held_sizes.of_claims(tx, claims, index.rows, self.joins.groups)
        changed, _, groups = held_sizes.sizes(held.with_groups_of(claimed), reservation.id)
        victims = {id_ for replaced in self.joins.replaced for id_ in replaced(claims)}
        left = victims | {each.consumer for each in changed}
        instances = [each for each in state.instances if each.consumer not in left]
        instances += [each for each in changed if not _on_bare_metal(index, each)]
        for each in state.instances:
            if each.consumer in victims:
                state.packing.release(each.held)
        for claim in claims:
            if slot_drawn(first := claim.choices[0]) is None:
                state.packing.claim(first.allocations)
        unknown = _unlabelled(index, reservation.levels, instances)
        return replace(state, instances=instances, problems=unknown, groups={**state.groups, **groups})

    async def _remove(self, slots: Sequence[str]) -> None:
        orders = [ReleaseRequested(consumer=slot, generation="any") for slot in slots]
        # In the transaction of the releases: a released slot that has a record counts as drawn.
        await self.claims.release_many(orders, last=[stored.FORGET_EMPTY.of([(slot,) for slot in slots])])

    async def _add(self, reservation: Reservation, wanted: Sequence[tuple[str, Allocations]]) -> None:
        async with self.database.read() as tx:
            taken = await stored.slot_ids(tx, reservation.id)
        orders = []
        for root, allocations in wanted:
            slot = _slot_id(reservation.id, root, allocations, taken)
            taken.add(slot)
            claim = ConsumerClaim(
                consumer=slot,
                generation=None,
                choices=(Choice(allocations),),
                project=UNSAID_ID,
                type=RESERVATION,
                parts=ClaimParts(SlotClaim(reservation=reservation.id)),
            )
            orders.append(ClaimRequested(claims=(claim,)))
        answers = await self.claims.claim_many(orders)
        refused = sum(not isinstance(answer.results[0], Claimed) for answer in answers)
        if refused:  # other claims have taken the capacity: plan again at the next call
            log.info("headroom %s: %d slots were refused", reservation.name, refused)
            self._changed = True


def _slot_id(reservation: str, root: str, allocations: Allocations, taken: set[str]) -> str:
    size = sorted((provider, sorted(amounts.items())) for provider, amounts in allocations.items())
    number = 0
    while (slot := str(uuid5(UUID(reservation), f"{root} {size} {number}"))) in taken:
        number += 1
    return slot


async def _plan(state: HeadroomState) -> HeadroomPlan:
    """Plan in a thread: for 100,000 instances it takes seconds, in which placement answers claims."""
    return await asyncio.to_thread(headroom, state)


def _on_bare_metal(index: Index, instance: HeldSize) -> bool:
    """Return whether the instance has a bare-metal node, from which no instance is evacuated."""
    row = index.rows.get(instance.root)
    return row is not None and is_bare_metal(instance.held, row.uuid, row.inventories)


def _hosts(index: Index, slots: Sequence[HeldSize]) -> tuple[dict[str, HeadroomHost], ProviderPacking]:
    """Return the hosts by root, and what is free on them; what the slots hold counts as free."""
    hosts, free = dict[str, HeadroomHost](), dict[str, Mapping[str, int]]()
    for root, members in index.trees.items():
        row = index.rows[root]
        if not row.agent:
            continue
        rows = [row] if len(members) == 1 else [index.rows[uuid] for uuid in members]
        free |= {each.uuid: each.free for each in rows}
        kind = kind_of(row, index.aggregate_facts)
        tree = node_of(rows) if len(rows) > 1 else None
        hosts[root] = HeadroomHost(root, kind, CLOSED.isdisjoint(row.traits), tree)
    packing = ProviderPacking(free)
    for slot in slots:
        packing.release(slot.held)
    return hosts, packing


def _domains(index: Index, levels: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return the roots of each domain of the given levels, by the domain's name: a single host, or the hosts
    with one label.
    """
    domains: dict[str, set[str]] = {}
    for root in index.trees:
        row = index.rows[root]
        for level in levels:
            label = row.host or root if level == HOST else row.domains.get(level)
            if label:
                domains.setdefault(f"{level} {label}", set()).add(root)
    return {name: frozenset(roots) for name, roots in domains.items()}


def _levels_without_domains(levels: Sequence[str], domains: Iterable[str]) -> tuple[str, ...]:
    found = {name.split(" ")[0] for name in domains}
    return tuple(level for level in levels if level != HOST and level not in found)


def _unlabelled(index: Index, levels: Sequence[str], instances: Sequence[HeldSize]) -> tuple[str, ...]:
    """Return, for each level, a sentence with the number of instances on hosts without a label of the level,
    if any: the domains of such hosts are unknown.
    """
    rows = [index.rows[each.root] for each in instances if each.root in index.rows]
    counts = {level: sum(level not in row.domains for row in rows) for level in levels if level != HOST}
    return tuple(
        f"{count} instances: their hosts have no label of level {level}"
        for level, count in counts.items()
        if count
    )
