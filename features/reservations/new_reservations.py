"""Creates a reservation from the options of an operator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from berth.kit import BadSetting, BootOptions, boot_request, time_given
from bus.clock import Clock, time_text
from bus.delivery.runner import Bus
from bus.errors import UNANSWERED, Unavailable
from features.reservations.edits import edit_reservation
from features.reservations.messages import (
    FILL_RESERVATION,
    RESERVATIONS,
    FillReservation,
    FindReservations,
    MakeReservation,
    Reservation,
    ReservationFilled,
)


@dataclass(frozen=True, kw_only=True)
class NewReservation:
    """A reservation as an operator enters it, by the options of `berth project reservation create` or in a
    form.
    """

    vcpus: int = 1
    memory_mb: int = 512
    disk_gb: int = 1
    extra_spec: Sequence[str] = ()
    count: int = 1
    host: Sequence[str] = ()
    cell: str = ""
    zone: str = ""
    begin: str = ""
    end: str = ""
    hold_from: str = ""
    open: bool = False
    any_project: bool = False
    no_returns: bool = False
    purpose: str = ""


def new_reservation(name: str, project: str, options: NewReservation, now: float) -> Reservation:
    if options.any_project and (project or options.open):
        raise BadSetting("--any-project: builds of every project may name it; no --project, no --open")
    sizes = BootOptions(
        vcpus=options.vcpus,
        memory_mb=options.memory_mb,
        disk_gb=options.disk_gb,
        extra_spec=tuple(options.extra_spec),
    )
    request = boot_request(sizes)
    begins, ends = time_given("--begin", options.begin, now), time_given("--end", options.end, now)
    if ends and ends <= max(begins, now):
        raise BadSetting(f"--end {options.end}: it is not after the beginning")
    return Reservation(
        id=Clock().uuid(),
        name=name,
        project="" if options.any_project else project or request.project,
        purpose=options.purpose,
        flavor=request.flavor,
        count=options.count,
        hosts=tuple(options.host),
        cell=options.cell,
        zone=options.zone,
        use="open" if options.open else "named",
        holds_from=time_given("--hold-from", options.hold_from, now),
        begins=begins,
        ends=ends,
        returns=not options.no_returns,
    )


async def create_reservation(
    bus: Bus, reservation: Reservation, now: float, closed: Mapping[str, int] = MappingProxyType({})
) -> ReservationFilled:
    """Create a reservation and, if its capacity is to be held from now on, claim its slots; return how many
    slots have a host. `closed` has the numbers of slots on hosts that a plan has closed.

    If no scheduler answers, the reservation exists without slots, and schedulers claim them later.
    """
    try:
        await edit_reservation(bus, MakeReservation(reservation=reservation))
    except Unavailable:
        if not (await bus.asker(RESERVATIONS)(FindReservations(ids=(reservation.id,)))).reservations:
            raise
    if reservation.state(now) == "planned":
        return ReservationFilled(placed=0)
    order = FillReservation(reservation=reservation.id, closed=dict(closed))
    try:
        return await bus.asker(FILL_RESERVATION)(order)
    except UNANSWERED as problem:
        why = f"the reservation is stored, and schedulers claim its slots later: {problem}"
        return ReservationFilled(placed=0, missing=reservation.count, reason=why)


def filled_text(reservation: Reservation, filled: ReservationFilled, now: float) -> str:
    if reservation.state(now) == "planned":
        return f"no capacity is held before {time_text(reservation.holds_from)}"
    text = f"{filled.placed} of {reservation.count} slots have a host"
    return f"{text}: {filled.reason}" if filled.missing else text
