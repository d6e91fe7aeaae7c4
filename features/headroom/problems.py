"""The problem that a failover headroom does not cover the loss of a host or rack."""

from collections.abc import Iterable

from berth.kit import ProblemReader, ProblemsPart
from bus.problems import Alert, KnownProblem, ProblemKind
from features.headroom.messages import HEADROOM, FindHeadroom, Headroom

HEADROOM_LOST = ProblemKind(
    name="headroom-lost",
    severity="warning",
    says="Failover headroom does not cover the loss of any one {levels}.",
    consequence="After such a loss some instances would find no reserved capacity for their evacuation.",
    do="Run `berth host headroom show` for the reasons, then add hosts, move instances, or set fewer levels.",
    link="/headroom",
    alert=Alert(
        name="BerthHeadroomLost",
        expr="min(berth_headroom_kept) == 0",
        after="5m",
        values={"levels": "host or rack"},
    ),
)


def lost(headrooms: Iterable[Headroom]) -> list[KnownProblem]:
    """Return a problem for each headroom that is not kept."""
    found = []
    for headroom in headrooms:
        if not headroom.kept:
            levels = " or ".join(headroom.reservation.levels)
            found.append(HEADROOM_LOST.problem(f"headroom {levels}", headroom.lost_since, levels=levels))
    return found


async def find(reader: ProblemReader) -> list[KnownProblem]:
    return lost((await reader.asker(HEADROOM)(FindHeadroom())).headrooms)


PART = ProblemsPart(kinds=(HEADROOM_LOST,), find=find, asks=(HEADROOM,))
