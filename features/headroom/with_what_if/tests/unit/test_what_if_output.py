"""The failover headroom in the output of `berth request what-if`."""

from msgspec.structs import replace

from bus.requests import Flavor
from control_room.kit import Reply
from features.headroom.messages import Headroom, HeadroomFound
from features.headroom.with_what_if.what_if_part import shown
from features.reservations.messages import Reservation
from tests.support.ids import uid

FLAVOR = Flavor(name="any")
HEADROOM = Reservation(
    id=uid(1, "7"), name="headroom", flavor=FLAVOR, use="failover", levels=("host", "rack")
)
KEPT = Headroom(reservation=HEADROOM, kept=True, slots=1, domains=3, instances=2)


def lines(*headrooms: Headroom, problem: str = "") -> list[tuple[str, str]]:
    reply = Reply("placement", None if problem else HeadroomFound(headrooms=headrooms), problem)
    return list(shown(reply).lines)


def test_what_becomes_of_the_headroom_is_shown() -> None:
    assert lines() == []
    assert lines(KEPT) == [("  failover headroom for any one host or rack would still be kept", "")]
    [(ends, style)] = lines(replace(KEPT, lacking_then=("rack r1: no host", "b")))
    assert ("would end: rack r1: no host (and 1 more)" in ends, style) == (True, "yellow")
    [(lost, _)] = lines(replace(KEPT, kept=False, lacking=("rack r1: no host",)))
    assert lost.endswith("is already not kept: rack r1: no host")
    [(kept, _)] = lines(replace(KEPT, kept=False))  # its slots are not claimed yet
    assert kept.endswith("would still be kept")
    unknown = "  failover headroom afterwards is unknown: placement: no answer in time"
    assert lines(problem="no answer in time") == [(unknown, "yellow")]
