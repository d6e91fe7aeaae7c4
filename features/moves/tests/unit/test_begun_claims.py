"""The claims of moves that began, whose cells may not have received their orders."""

import pytest

from bus.claims import CLEANUP, MIGRATION, Held, holder_consumer
from bus.requests import BuildSpec, Flavor
from bus.resources import Consumer
from features.moves.core.start import MoveStart
from features.moves.messages import MoveRequested
from features.moves.started_claims import _claim_of
from tests.support.ids import uid

BUILD, HELD = uid(1), {uid(1, "a"): {"VCPU": 1}}
MOVE = MoveRequested(move=uid(2), build=BUILD, kind="migrate")


def consumer(id_: str, type_: str = "INSTANCE", generation: int = 2) -> Consumer:
    return Consumer(id=id_, generation=generation, project="p", user="u", type=type_, allocations=HELD)


def holder(attempt: int, type_: str = MIGRATION) -> Consumer:
    return consumer(holder_consumer(BUILD, attempt), type_)


@pytest.mark.parametrize(
    ("consumers", "attempt", "is_held"),
    [
        ([consumer(BUILD), holder(3)], 3, True),
        ([consumer(BUILD), holder(2)], 2, True),  # the guest was rebuilt since
        ([consumer(BUILD, generation=1), holder(2)], 3, False),  # a later claim, which the cell knows
        ([consumer(BUILD)], 3, False),
        ([holder(2)], 2, False),  # the instance was deleted since
        ([holder(2, CLEANUP)], 3, False),
        ([], 3, False),
    ],
)
def test_the_holder_of_a_moves_source_shows_the_attempt_at_its_claim(
    consumers: list[Consumer], attempt: int, is_held: bool
) -> None:
    spec = BuildSpec(flavor=Flavor(name="small", vcpus=1))
    start = MoveStart(MOVE, cell="c1", attempt=3, generation=1, source=None, spec=spec)
    found, held = _claim_of(start, {each.id: each for each in consumers})
    assert (found.attempt, held) == (attempt, Held(generation=2, allocations=HELD) if is_held else None)
