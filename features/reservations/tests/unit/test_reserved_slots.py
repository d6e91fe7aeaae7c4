"""The slots that a reservation claims and forgets while hosts are closed to builds."""

from bus.requests import Flavor
from features.reservations.core.reserved_slots import HeldSlots
from features.reservations.messages import Reservation, ReservedSlot, slot_consumer
from tests.support.ids import uid

R1 = uid(1, "7")
X, Y, Z = uid(1, "a"), uid(2, "a"), uid(3, "a")
FIRST, SECOND, THIRD, FOURTH = (slot_consumer(R1, number) for number in (1, 2, 3, 4))


def a_slot(consumer: str, root: str, drawn: int = 0, held: int | None = None) -> ReservedSlot:
    left = 4 - drawn if held is None else held
    return ReservedSlot(
        consumer=consumer,
        allocations={root: {"VCPU": 4}},
        held={root: {"VCPU": left}} if left else {},
        roots=(root,),
        drawn_by=(uid(9),) if drawn else (),
    )


def held_slots(*slots: ReservedSlot, count: int = 2, closed: frozenset[str] = frozenset()) -> HeldSlots:
    reservation = Reservation(id=R1, name="season", project="p1", flavor=Flavor(name="m"), count=count)
    return HeldSlots(reservation, slots, closed)


def test_a_new_reservation_claims_all_its_slots() -> None:
    new = held_slots()
    assert (new.useful, new.to_claim(), new.to_forget(2)) == (0, [FIRST, SECOND], [])


def test_slots_on_closed_hosts_are_forgotten_only_after_others_are_claimed() -> None:
    held = held_slots(a_slot(FIRST, X), a_slot(SECOND, X), closed=frozenset({X}))
    assert (held.useful, held.to_claim()) == (0, [THIRD, FOURTH])
    assert held.to_forget(0) == []
    assert held.to_forget(1) == [FIRST]
    assert held.to_forget(2) == [FIRST, SECOND]


def test_a_slot_from_which_an_instance_drew_stays_on_a_closed_host() -> None:
    used = a_slot(SECOND, X, held=0)  # its instance was deleted, and nothing returns
    held = held_slots(a_slot(FIRST, X, drawn=1), used, closed=frozenset({X}))
    assert (held.useful, held.to_claim(), held.to_forget(0)) == (2, [], [])


def test_a_surplus_slot_is_forgotten_after_its_host_has_opened_again() -> None:
    slots = a_slot(FIRST, X, drawn=4), a_slot(SECOND, Y), a_slot(THIRD, Z)
    held = held_slots(*slots)
    assert (held.to_claim(), held.to_forget(0)) == ([], [SECOND])
    assert held_slots(*slots, closed=frozenset({Z})).to_forget(0) == [THIRD]
