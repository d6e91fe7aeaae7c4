"""Restricts requests to the slots of a reservation that they draw from, and assigns slots to their claims."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Protocol

from msgspec import structs

from bus.claims import Choice
from bus.queries import Candidate, FindCandidates
from bus.vocabulary import Allocations, Id, covers, totals, without
from features.reservations.messages import (
    FAILOVER,
    Reservation,
    ReservedSlot,
    choice_from,
    reservation_of,
    slot_drawn,
)
from scheduler_worker.extension import Alternative, Unfit


@dataclass(frozen=True, slots=True)
class Draw:
    """The slots of a reservation that a flavor of a request may draw from. Each claim gets the smallest slot
    that still covers it.
    """

    reservation: Id
    name: str
    slots: tuple[ReservedSlot, ...]  # undrawn slots that an instance of the flavor may draw from
    # Slots that searches count as free. The choices of other instances count as used until their claims are
    # known, so the slots that these draw from must count as free, too.
    free: tuple[ReservedSlot, ...]
    question: FindCandidates  # the search without the restriction to the reservation's hosts
    is_optional: bool  # True if the request does not name the reservation, so it may use other hosts

    @property
    def id(self) -> Id:
        return self.reservation

    @property
    def within(self) -> Mapping[str, Sequence[Allocations]]:
        """Return the free slots of the reservation by host: an instance must fit into one of them."""
        within: dict[str, list[Allocations]] = {}
        for slot in self.slots:
            for root in slot.roots:
                if slot.held not in (held := within.setdefault(root, [])):
                    held.append(slot.held)
        return within

    def renewed(self, renew: Callable[[FindCandidates], FindCandidates]) -> "Draw":
        """Return the draw with another form of its question."""
        return replace(self, question=renew(self.question))

    def choices(self, ways: Sequence[Candidate], taken: dict[Id, Allocations]) -> tuple[Choice, ...]:
        """Return the allocations of a claim for each candidate in `ways`, with the slot from which the claim
        draws. The first candidate's allocations are subtracted from its slot for later claims of the batch:
        `taken` has by slot what is left of it.

        If no slot is left for a candidate, the claim takes free capacity there, if it need not draw.
        """
        # If no slot covers the claim, it names any slot, so that placement refuses it.
        if_none = None if self.is_optional or not ways else self.slots[0].consumer
        choices = [
            choice_from(_smallest(self.slots, way.allocations, taken) or if_none, way.allocations, way.shapes)
            for way in ways
        ]
        if choices and (drawn := slot_drawn(choices[0])) is not None:
            held = next((slot.held for slot in self.slots if slot.consumer == drawn), {})
            taken[drawn] = without(taken.get(drawn, held), choices[0].allocations)
        return tuple(choices)


class ChosenCapacity(Protocol):
    """The capacity that a scheduler has chosen for an instance, and has not claimed yet."""

    @property
    def allocations(self) -> Allocations: ...

    @property
    def root(self) -> str: ...


def _smallest(
    slots: Iterable[ReservedSlot], wanted: Allocations, left: Mapping[Id, Allocations]
) -> Id | None:
    """Return the smallest slot that covers a claim. `left` has what is left of slots that other claims draw
    from.
    """
    covering = [
        (totals(held) != totals(wanted), _size(held), slot.consumer)
        for slot in slots
        if covers(held := left.get(slot.consumer, slot.held), wanted)
    ]
    return min(covering)[2] if covering else None


def draw_of(alternative: Alternative) -> Draw | None:
    """Return the slots that an alternative is restricted to, or None."""
    restriction = alternative.restriction
    return restriction if isinstance(restriction, Draw) else None


def drawing_on(
    alternative: Alternative,
    reservation: Reservation,
    slots: Sequence[ReservedSlot],
    now: float,
    alike: Set[Id] | None = None,
) -> Alternative:
    """Return an alternative flavor of a request, restricted to the hosts of slots that cover its amounts and
    that no instance uses yet. In a reservation for evacuations (`failover`), slots of exactly the flavor's
    amounts are preferred. If `alike` is given, a set of consumers of slots, only slots of these consumers
    with exactly the flavor's amounts are used.

    A request that does not name the reservation may use other hosts if no host with a slot accepts it.
    """
    question, asked = alternative.question, alternative.asked
    fitting = [slot for slot in slots if slot.held and _total_covers(slot.held, asked)]
    if reservation.use == FAILOVER:  # a larger slot stays free for a larger instance
        exact = [slot for slot in fitting if totals(slot.held) == asked]
        alone = None if alike is None else [slot for slot in exact if slot.consumer in alike]
        fitting = (exact or fitting) if alone is None else alone
    roots = {root for slot in fitting for root in slot.roots}
    if question.roots:
        roots &= set(question.roots)
    why, state = "", reservation.state(now)
    if state != "active":
        why = f"reservation {reservation.name!r} is {state}"
    elif not roots:
        held = sum(1 for slot in slots if slot.held)
        why = f"reservation {reservation.name!r}: no undrawn slot fits ({held} of {len(slots)} are undrawn)"
    within = structs.replace(question, roots=tuple(sorted(roots)) if roots and not why else (reservation.id,))
    optional = reservation.id != reservation_of(alternative.request.parts)
    free = [slot for slot in slots if slot.held] if reservation.use == FAILOVER else fitting
    drawn = Draw(reservation.id, reservation.name, tuple(fitting), tuple(free), question, optional)
    unfit = Unfit("reservation", why) if why else None
    return replace(alternative, question=within, restriction=drawn, unfit=unfit)


def roles_drawing_on(
    roles: Sequence[Alternative], reservation: Reservation, slots: Sequence[ReservedSlot], now: float
) -> list[Alternative]:
    """Return the flavors of all roles of a request, each restricted to the slots that cover its amounts.

    A role that fits no slot may use hosts without the slots of the other roles, which its search counts as
    free. But if the request names the reservation, the role fits on no host.
    """
    drawing = [drawing_on(each, reservation, slots, now) for each in roles]
    counted = {slot.consumer: slot for each in drawing for slot in _slots_of(each)}
    roots = {root for slot in counted.values() for root in slot.roots}
    return [_outside(each, roots) if roots else each for each in drawing]


def _outside(alternative: Alternative, roots: Set[str]) -> Alternative:
    draw = draw_of(alternative)
    if draw is None or not draw.is_optional or alternative.unfit is None:
        return alternative
    excluded = tuple(sorted({*draw.question.not_roots, *roots}))
    question = structs.replace(draw.question, not_roots=excluded)
    return replace(alternative, question=question, restriction=replace(draw, slots=(), free=()), unfit=None)


def without_chosen(alternative: Alternative, chosen: Iterable[ChosenCapacity]) -> Alternative:
    """Return an alternative restricted to what the unsettled choices of other instances leave of its slots.
    `chosen` has the choices that draw from its reservation.
    """
    draw = draw_of(alternative)
    if draw is None or not draw.slots:
        return alternative
    left = {slot.consumer: slot.held for slot in draw.free}
    for each in chosen:
        there = [slot for slot in draw.free if each.root in slot.roots]
        if (drawn := _smallest(there, each.allocations, left)) is not None:
            left[drawn] = without(left[drawn], each.allocations)
    slots = [
        structs.replace(slot, held=left[slot.consumer])
        for slot in draw.slots
        if _total_covers(left[slot.consumer], alternative.asked)
    ]
    if len(slots) == len(draw.slots):
        return alternative
    roots = {root for slot in slots for root in slot.roots}.intersection(alternative.question.roots)
    within = structs.replace(alternative.question, roots=tuple(sorted(roots)) or (draw.reservation,))
    return replace(alternative, question=within, restriction=replace(draw, slots=tuple(slots)))


def undrawn(alternative: Alternative) -> Alternative:
    """Return an alternative flavor without its restriction to a reservation."""
    if (draw := draw_of(alternative)) is None:
        return alternative
    return replace(alternative, question=draw.question, restriction=None, unfit=None)


def elsewhere(alternative: Alternative) -> Alternative:
    """Return an alternative flavor without its restriction to a reservation that it need not draw from."""
    draw = draw_of(alternative)
    return alternative if draw is not None and not draw.is_optional else undrawn(alternative)


def counted_as_free(alternatives: Iterable[Alternative]) -> list[Allocations]:
    """Return the allocations of the slots that flavors of a request may draw from: searches for a host count
    them as free.
    """
    return list({slot.consumer: slot.held for each in alternatives for slot in _slots_of(each)}.values())


def _slots_of(alternative: Alternative) -> tuple[ReservedSlot, ...]:
    draw = draw_of(alternative)
    return () if draw is None else draw.free


def _size(held: Allocations) -> tuple[int, ...]:
    total = totals(held)
    return tuple([total[name] for name in sorted(total)])


def _total_covers(held: Allocations, asked: Mapping[str, int]) -> bool:
    total = totals(held)
    return all(total.get(name, 0) >= amount for name, amount in asked.items())
