"""Moves between hosts that use one pool: what the scheduler sends, and what a conductor claims back."""

from msgspec.structs import replace

from bus.claims import Choice
from bus.messages import Selection
from bus.vocabulary import Allocations
from cell_conductor.core.events import AttemptLimits
from features.moves.core.course import undone_unknown
from features.moves.core.phases import claim_or_release
from features.moves.core.start import MoveStart, move_start, undoing
from features.moves.tests.support.conductor_moves import a_move, a_report_of
from features.moves.tests.support.move_builders import a_build_that_stands, on_host
from features.moves.tests.support.move_builders import a_move as a_request
from tests.support.conductor_builders import a_build_order, a_placed, a_selection, an_agent_report, step
from tests.support.ids import uid

POOL, OTHER = uid(1, "f"), uid(2, "f")
LIMITS = AttemptLimits(max_attempts=3, build_timeout=100.0, delete_timeout=600.0, cleanup_timeout=5000.0)


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


def test_the_alternates_of_a_move_use_the_pools_of_the_chosen_host() -> None:
    near, far, bare = (using(on_host(3), share(50)), using(on_host(4), share(50, OTHER)), on_host(5))
    start = a_start()
    assert start.placed(2, using(on_host(2), share(50)), (far, near, bare)).alternates == (near,)
    assert start.placed(2, on_host(2), (far, near, bare)).alternates == (far, bare)
    on_source = using(on_host(1), share(50))
    assert start.placed(2, on_source, (far, near, bare)).alternates == (far, near, bare)


def test_a_move_that_no_cell_received_returns_with_its_share() -> None:
    placed = a_start().placed(2, using(on_host(2), share(50)))
    assert undoing(placed, 2).choices == (Choice(share(20)),)
    undone = undone_unknown(placed)
    assert undone is not None and undone.claims[0].choices == (Choice(share(20)),)  # type: ignore[union-attr]


def test_the_way_back_claims_the_share_of_the_source() -> None:
    boot = a_placed(hosts=1)
    boot = replace(boot, chosen=using(a_selection(0), share(20)))
    move = replace(a_move(), chosen=using(a_selection(5), share(50)), alternates=())
    build = None
    for event in (
        boot,
        an_agent_report(a_build_order(boot), "built"),
        move,
        a_report_of(move, "prepare", 1, "done"),
        a_report_of(move, "send", 2, "failed", cause="no"),
    ):
        build, _ = step(build, event, 0.0, LIMITS)
    assert build is not None
    [claim] = claim_or_release(build).claims  # type: ignore[union-attr]
    assert claim.take_over and claim.choices == (Choice(share(20)),)
