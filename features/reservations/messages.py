"""Reservations of capacity for a project or for failover, and messages that query, edit and fill them."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self
from uuid import UUID, uuid5

from msgspec import field, structs

from bus.acts import Act, Requested, describe, sent
from bus.claims import Choice, ConsumerClaim
from bus.domains import BUILT_IN_LEVELS, HOST, Level
from bus.feature import MessagesPart
from bus.parts import ChoicePart, ChoiceParts, ClaimParts, ConsumerPart, RequestPart, RequestParts
from bus.requests import Flavor
from bus.topics import ANYONE, Query
from bus.undo import NotUndoable, Past, UndoRule
from bus.vocabulary import (
    Allocations,
    Amount,
    Cause,
    Contended,
    Count,
    Id,
    LargeMap,
    LimitReached,
    LongList,
    Message,
    Missing,
    Name,
    ObjectKind,
    Seconds,
    Shapes,
    ShortList,
    Tagged,
    Taken,
    Text,
    Value,
    names,
)

RESERVATION_KIND = ObjectKind(
    "reservation", "worker", "the scheduler, features/reservations/drawn_reservations.py"
)
ReservationId = Annotated[Id, names(RESERVATION_KIND)]
RESERVATION = "RESERVATION"  # type of consumers that hold the capacity of a reservation
FAILOVER: Literal["failover"] = "failover"

Use = Literal["named", "open", "failover"]
State = Literal["planned", "held", "active", "ended"]


def slot_consumer(reservation: str, number: int) -> str:
    """Return the id of the consumer that holds the slot of this number in a reservation."""
    return str(uuid5(UUID(reservation), f"slot {number}"))


class Reservation(Value, frozen=True, kw_only=True):
    """Capacity for `count` instances of a flavor, held by one consumer for each of them (its slots).

    The capacity is held from `holds_from`; builds of the project can draw it between `begins` and `ends`.
    """

    id: Id
    name: Name
    project: Text = ""  # empty: for builds of any project that name the reservation, or for failover
    purpose: Text = ""  # a text that the operator can choose freely
    flavor: Flavor
    count: Amount = 1
    hosts: ShortList[Text] = ()  # names of the hosts to use; empty: any host
    cell: Text = ""
    zone: Text = ""
    # who can draw: named: builds that name the reservation; open: every build of the project; failover:
    # evacuations of all projects
    use: Use = "named"
    # failover: the loss of any one domain of a level is covered; `host`, or a level of labels such as `rack`
    levels: ShortList[Level] = ()
    holds_from: Seconds = 0.0  # seconds since 1970; 0: from the reservation's creation
    begins: Seconds = 0.0  # 0: from the reservation's creation
    ends: Seconds = 0.0  # 0: no end
    returns: bool = True  # capacity of a deleted instance is reserved again until the end
    ended: bool = False

    def serves(self, project: str) -> bool:
        """Return whether this reservation is for builds of `project` or of any project, not for failover."""
        return self.use != FAILOVER and self.project in ("", project)

    def state(self, now: float) -> State:
        if self.ended or 0 < self.ends <= now:
            return "ended"
        if now < self.holds_from:
            return "planned"
        return "held" if now < self.begins else "active"


class ReservedSlot(Value, frozen=True, kw_only=True):
    """One slot of a reservation: the allocations that it reserved at first, and that it still holds."""

    consumer: Id
    allocations: Allocations  # allocations that the slot reserved at first
    held: Allocations = field(default_factory=dict)  # allocations that are not drawn now
    roots: LongList[Text] = ()
    drawn_by: LongList[Text] = ()  # consumers that drew from the slot and still hold allocations

    @property
    def is_undrawn(self) -> bool:
        """Return whether the slot holds all that it reserved at first."""
        return self.held == self.allocations and not self.drawn_by


class FindReservations(Message, frozen=True, kw_only=True):
    """A query for a page of the reservations that meet the given conditions (none: all), with their slots.
    `every_reservation` reads all pages.

    With `drawn_by`, no other condition applies: the reservation from which this consumer drew is returned.
    """

    ids: LongList[Id] = ()
    name: Text = ""
    project: Text = ""
    use: Text = ""
    drawn_by: Text = ""
    slots: bool = True  # False: without slots
    after: Text = ""  # `last` of the previous page


class ReservationsFound(Message, frozen=True, kw_only=True):
    """The answer to FindReservations: a page, oldest first if it is the only one, else sorted by id."""

    reservations: LongList[Reservation]
    slots: LargeMap[Text, LongList[ReservedSlot]] = field(default_factory=dict)  # reservation → its slots
    made: LargeMap[Text, Count] = field(default_factory=dict)  # reservation → number of slots claimed
    last: Text = ""  # `after` of the next page; empty: this is the last page


async def every_reservation(
    find: Callable[[FindReservations], Awaitable[ReservationsFound]], query: FindReservations
) -> ReservationsFound:
    """Return the reservations of all pages. `find` sends the query for one page."""
    found = await find(query)
    reservations, slots, made = list(found.reservations), dict(found.slots), dict(found.made)
    while found.last:
        found = await find(structs.replace(query, after=found.last))
        reservations += found.reservations
        slots |= found.slots
        made |= found.made
    return ReservationsFound(reservations=tuple(reservations), slots=slots, made=made)


class MakeReservation(Tagged, frozen=True, kw_only=True):
    """An edit that stores a reservation with a name unique in its project; a repeated edit is no error.

    If a failover reservation of this name exists, it keeps its id and slots, and covers the levels of the
    new one from then on. Levels that are no longer covered then must be named in `replaces`.
    """

    reservation: Reservation
    replaces: ShortList[
        Level
    ] = ()  # levels whose loss the present failover reservation need not cover any more


class ExtendReservation(Tagged, frozen=True, kw_only=True):
    """An edit that changes the end of a reservation that has not ended. If `ends` is 0, the reservation has
    no end.
    """

    reservation: Id
    ends: Seconds = 0.0


class EndReservation(Tagged, frozen=True, kw_only=True):
    """An edit that ends a reservation and releases what is not drawn; instances that drew keep running."""

    reservation: Id
    forget: bool = False  # also delete the reservation's record


class ForgetSlots(Tagged, frozen=True, kw_only=True):
    """An edit that releases the given slots of a reservation and deletes their records, except slots from
    which an instance drew. The reservation has replaced them by slots on other hosts.
    """

    reservation: Id
    slots: LongList[Id]


ReservationEdit = MakeReservation | ExtendReservation | EndReservation | ForgetSlots


class ReservationEdited(Tagged, frozen=True, kw_only=True):
    reservation: Reservation
    changed: bool = False
    released: Count = 0  # number of released slots that still held allocations


class ReservationOver(Tagged, frozen=True, kw_only=True):
    """The refusal of an edit because the reservation has ended."""

    reservation: Text


class LevelsUnknown(Tagged, frozen=True, kw_only=True):
    """The refusal of a failover reservation because no host has a label of a level."""

    levels: ShortList[Level]
    known: ShortList[Level]  # `host`, and the levels of the labels of hosts


def levels_unknown(levels: Sequence[Level], of_labels: Collection[Level]) -> LevelsUnknown | None:
    """Return the refusal of a reservation for these levels if no host has a label of one of them.
    `of_labels`: the levels of which any host has a label.
    """
    known = (HOST, *sorted({*of_labels}.difference(BUILT_IN_LEVELS)))
    unknown = tuple([level for level in levels if level not in known])
    return LevelsUnknown(levels=unknown, known=known) if unknown else None


class LevelsCovered(Tagged, frozen=True, kw_only=True):
    """The refusal of a failover reservation because one of the same name covers other levels, which the edit
    does not name in `replaces`.
    """

    levels: ShortList[Level]  # all levels that are covered now
    dropped: ShortList[Level]  # those that would not be covered any more


ReservationRefused = (
    ReservationOver | LevelsUnknown | LevelsCovered | Missing | Taken | LimitReached | Contended
)
ReservationResult = ReservationEdited | ReservationRefused


class ReservationEditRequested(Message, frozen=True, kw_only=True):
    """A request to create, extend or end a reservation."""

    edit: ReservationEdit


class ReservationEditAnswered(Message, frozen=True, kw_only=True):
    result: ReservationResult


class FillReservation(Message, frozen=True, kw_only=True):
    """A request to a scheduler to claim the slots that a reservation lacks."""

    reservation: Id
    # root → slots to claim there without filters, because a plan has closed this host to make room for them
    closed: LargeMap[Id, Amount] = field(default_factory=dict)


class ReservationFilled(Message, frozen=True, kw_only=True):
    placed: Count  # number of slots that hold or have held capacity
    missing: Count = 0
    reason: Cause = ""  # why slots are missing


# Parts of messages


class ReservationPart(RequestPart, frozen=True, kw_only=True):
    """The reservation of the project to which a request is limited: it uses no other capacity."""

    flat: ClassVar = {"reservation": "hints"}
    uses_held_capacity: ClassVar = True

    reservation: ReservationId | None = None

    def recorded(self) -> Self:
        return self


class SlotClaim(ConsumerPart, frozen=True, kw_only=True):
    """The reservation of which a consumer becomes a slot."""

    reservation: Id


class DrawPart(ChoicePart, frozen=True, kw_only=True):
    """The consumer that is a reservation's slot: all allocations of the choice are taken from this slot, in
    the transaction of the claim.
    """

    slot: Id


def reservation_of(parts: RequestParts) -> Id | None:
    """Return the reservation that a request names."""
    part = parts.get(ReservationPart)
    return None if part is None else part.reservation


def reserves(claim: ConsumerClaim) -> Id | None:
    """Return the reservation of which a claim's consumer becomes a slot."""
    part = claim.parts.get(SlotClaim)
    return None if part is None else part.reservation


def slot_drawn(choice: Choice) -> Id | None:
    """Return the slot from which a choice draws."""
    part = None if choice.parts is None else choice.parts.get(DrawPart)
    return None if part is None else part.slot


def choice_from(slot: Id | None, allocations: Allocations, shapes: Shapes | None = None) -> Choice:
    """Return a choice that draws from a slot, if one is given."""
    parts = None if slot is None else ChoiceParts(DrawPart(slot=slot))
    return Choice(allocations, shapes or {}, parts)


RESERVATIONS = Query(
    "placement.reservations",
    FindReservations,
    ReservationsFound,
    "reservations with their slots",
    ANYONE,
    "placement",
)
EDIT_RESERVATION = Query(
    "placement.reservation",
    ReservationEditRequested,
    ReservationEditAnswered,
    "create, extend or end a reservation",
    ANYONE,
    "placement",
)
FILL_RESERVATION = Query(
    "scheduler.reserve",
    FillReservation,
    ReservationFilled,
    "claim the slots that a reservation lacks",
    ANYONE,
    "scheduler",
)


# The acts on reservations.


def _reservation_state(message: Any) -> Any:
    return RESERVATIONS, FindReservations(ids=(describe(message).id,), slots=False)


def _reversed(asked: ReservationEditRequested, past: Past) -> Sequence[Message]:
    match asked.edit:
        case ExtendReservation(reservation=id_):
            before, _ = past.item("reservations", "id", id_)
            edit = ExtendReservation(reservation=id_, ends=before.get("ends", 0.0))
            return (ReservationEditRequested(edit=edit),)
        case MakeReservation() if past.before:
            raise NotUndoable("it replaced an earlier reservation for failover")
        case MakeReservation(reservation=made):
            return (ReservationEditRequested(edit=EndReservation(reservation=made.id, forget=True)),)
        case _:
            raise NotUndoable("its capacity is free; `berth project reservation create` reserves it anew")


PART = MessagesPart(
    parts={RequestParts: ReservationPart, ClaimParts: SlotClaim, ChoiceParts: DrawPart},
    acts=(
        Act(
            "reserve",
            "operator",
            "reservations and failover headroom",
            sent(EDIT_RESERVATION, FILL_RESERVATION),
        ),
    ),
    requested={
        ReservationEditRequested: Requested(
            state=_reservation_state, targets=("reservation",), undo=UndoRule(EDIT_RESERVATION, _reversed)
        ),
        FillReservation: Requested(targets=("reservation",)),
    },
    done=(ReservationEdited,),
    page_asks=(RESERVATIONS, EDIT_RESERVATION, FILL_RESERVATION),
)
