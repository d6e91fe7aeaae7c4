"""Moves between hosts that use one pool: what the scheduler sends."""

from msgspec.structs import replace

from bus.claims import Choice
from bus.messages import Selection
from bus.vocabulary import Allocations
from features.moves.core.start import MoveStart, move_start
from features.moves.tests.support.move_builders import a_build_that_stands, on_host
from features.moves.tests.support.move_builders import a_move as a_request
from tests.support.ids import uid

POOL, OTHER = uid(1, "f"), uid(2, "f")


def share(disk: int, pool: str = POOL) -> Allocations:
    return {pool: {"DISK_GB": disk}}


def using(selection: Selection, *shares: Allocations) -> Selection:
    """Return a host with these shares of pools."""
    allocations = dict(selection.choice.allocations)
    for each in shares:
        allocations |= each
    return replace(selection, choice=Choice(allocations))


def a_start() -> MoveStart:
    stands = a_build_that_stands(1)
    stands = replace(stands, chosen=using(on_host(1), share(20)))
    start = move_start(a_request(), stands, "cell1")
    assert start is not None
    return start


def test_a_placed_move_names_the_share_of_its_source_at_the_pool_of_the_destination() -> None:
    start = a_start()
    assert start.placed(2, using(on_host(2), share(50))).shared == share(20)
    assert start.placed(2, using(on_host(2), share(20, OTHER))).shared == {}
    assert start.placed(2, on_host(2)).shared == {}
