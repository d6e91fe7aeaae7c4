"""A build that moves, whatever comes when, however often: never two guests, all room held once, one end."""

import pytest

from bus.moves import MoveKind, Steering
from tests.support.moving_world import MovingWorld, a_deletion, an_old_report, steerings

KINDS: tuple[MoveKind, ...] = ("migrate", "resize", "live", "evacuate", "shelve", "rebuild")
STEERINGS: tuple[tuple[Steering, ...], ...] = ((), ("abort",), ("revert",), ("confirm",), ("force", "abort"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("faults", [0.0, 0.3, 0.7])
def test_a_move_ends_once_and_everything_is_where_it_is_said_to_be(kind: MoveKind, faults: float) -> None:
    for seed in range(60):
        world = MovingWorld(seed, kind, faults)
        placed = world.place(verify=seed % 3 == 0)
        if kind != "evacuate":
            world.waiting.append(an_old_report(world.known))
        world.waiting += steerings(placed, *STEERINGS[seed % len(STEERINGS)])
        if seed % 4 == 3:
            world.waiting.append(a_deletion())
        world.run(3000)
        world.check_the_end()
        if world.known.status == "verifying":
            world.waiting += steerings(placed, world.chance.choice(["confirm", "revert"]))
            world.run(3000)
            world.check_the_end()
        if seed % 4 == 3:
            assert world.deleted
            assert world.known.status == "deleted"


@pytest.mark.parametrize("faults", [0.0, 0.5])
def test_an_instance_moves_again_and_again(faults: float) -> None:
    for seed in range(60):
        world = MovingWorld(seed, "migrate", faults)
        for _ in range(6):
            kinds = ("unshelve",) if world.known.status == "shelved" else KINDS
            world.kind = world.chance.choice(kinds)
            before = world.known
            placed = world.place()
            world.waiting += [an_old_report(before)] if world.kind in ("migrate", "resize", "live") else []
            world.waiting += steerings(placed, *STEERINGS[seed % len(STEERINGS)])
            world.run(3000)
            world.check_the_end()
            assert len(world.known.moved) <= 5, "hosts of old moves are not forgotten"
