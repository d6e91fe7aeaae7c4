"""Computes the data of the page about reservations, and parses the form of a new one."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bus.vocabulary import totals
from control_room.kit import InvalidForm, Reply, whole_numbers
from features.reservations.messages import FAILOVER, Reservation, ReservationsFound, ReservedSlot
from features.reservations.new_reservations import NewReservation

MOST_HOSTS = 6  # named in a row
_DIGITS = 12
_NUMBERS = {"vcpus": 1, "memory_mb": 512, "disk_gb": 1, "count": 1}


@dataclass(frozen=True)
class ReservedAmount:
    """The amounts of one resource class in all slots of a reservation: reserved at first, and free: not yet
    drawn by builds.
    """

    name: str
    reserved: int
    free: int

    @property
    def drawn(self) -> int:
        """Return how much of the reserved amount instances use."""
        return max(self.reserved - self.free, 0)

    @property
    def percent(self) -> float:
        """Return the used share in percent."""
        return 100 * self.drawn / self.reserved if self.reserved else 0.0


@dataclass(frozen=True)
class ReservationRow:
    """A row of the table of reservations: the reservation, the totals of its slots, and their hosts."""

    reservation: Reservation
    state: str
    amounts: Sequence[ReservedAmount]
    made: int  # slots that have a host
    undrawn: int  # slots that still hold something
    hosts: Sequence[str]  # names, or ids if the name is unknown
    more_hosts: int
    drawn_by: Sequence[str]

    @property
    def missing(self) -> int:
        """Return the number of slots that should have a host now and have no host."""
        return max(self.reservation.count - self.made, 0) if self.state in ("held", "active") else 0


@dataclass(frozen=True)
class ReservationsListed:
    """A page of reservations, sorted by creation time."""

    problem: str  # why placement did not answer; empty: it did
    rows: Sequence[ReservationRow] = ()
    count: int = 0
    more: bool = False


def reservations_at(found: Reply[ReservationsFound], skip: int, limit: int) -> list[Reservation]:
    """Return up to `limit` reservations after the first `skip`; headroom is neither returned nor counted."""
    return _shown(found)[skip : skip + limit]


def reservations_listed(
    every: Reply[ReservationsFound],
    found: Reply[ReservationsFound],
    ids: Sequence[str],
    names: Mapping[str, str],
    now: float,
    last: int,
) -> ReservationsListed:
    """Return a page with the reservations `ids`. Placement's answer `every` has all reservations, its answer
    `found` has the slots of `ids`.

    `names` maps roots to host names; `last` is the number of reservations up to the end of the page.
    """
    if every.answer is None or found.answer is None:
        return ReservationsListed(every.problem or found.problem)
    slots, here = found.answer.slots, [each for each in found.answer.reservations if each.id in ids]
    rows = [_row(each, slots.get(each.id, ()), names, now) for each in here]
    return ReservationsListed("", rows, len(_shown(every)), more=last < len(_shown(every)))


def roots_of(found: Reply[ReservationsFound]) -> tuple[str, ...]:
    """Return the roots of the hosts that the page shows by name: at most six of each reservation."""
    slots = found.answer.slots.values() if found.answer else ()
    return tuple(sorted({root for of_one in slots for root in _roots(of_one)[:MOST_HOSTS]}))


def _shown(found: Reply[ReservationsFound]) -> list[Reservation]:
    return [each for each in found.answer.reservations if each.use != FAILOVER] if found.answer else []


def _row(
    reservation: Reservation, slots: Sequence[ReservedSlot], names: Mapping[str, str], now: float
) -> ReservationRow:
    roots, reserved, free = _roots(slots), Counter[str](), Counter[str]()
    for slot in slots:
        reserved.update(totals(slot.allocations))
        free.update(totals(slot.held))
    return ReservationRow(
        reservation=reservation,
        state=reservation.state(now),
        amounts=[ReservedAmount(name, reserved[name], free[name]) for name in sorted(reserved)],
        made=len(slots),
        undrawn=sum(bool(slot.held) for slot in slots),
        hosts=[names.get(root, root) for root in roots[:MOST_HOSTS]],
        more_hosts=len(roots[MOST_HOSTS:]),
        drawn_by=[consumer for slot in slots for consumer in slot.drawn_by],
    )


def _roots(slots: Sequence[ReservedSlot]) -> list[str]:
    return sorted({root for slot in slots for root in slot.roots})


_TEXTS = ("name", "project", "extra_spec", "host", "cell", "zone", "begin", "end", "hold_from", "purpose")
FIELDS = (*_TEXTS, *_NUMBERS, "open", "any_project", "no_returns")


def parse_reservation(texts: Mapping[str, str]) -> NewReservation:
    """Return the reservation that a form describes; the caller reads its name and project from the form.

    Raise InvalidForm for an invalid number.
    """
    numbers = whole_numbers(texts, _NUMBERS, _DIGITS)
    if not numbers["count"]:
        raise InvalidForm("count: a reservation has at least one slot")
    return NewReservation(
        vcpus=numbers["vcpus"],
        memory_mb=numbers["memory_mb"],
        disk_gb=numbers["disk_gb"],
        count=numbers["count"],
        extra_spec=texts["extra_spec"].split(),
        host=texts["host"].replace(",", " ").split(),
        cell=texts["cell"],
        zone=texts["zone"],
        begin=texts["begin"],
        end=texts["end"],
        hold_from=texts["hold_from"],
        open=bool(texts["open"]),
        any_project=bool(texts["any_project"]),
        no_returns=bool(texts["no_returns"]),
        purpose=texts["purpose"],
    )
