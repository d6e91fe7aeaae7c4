"""The clock that everything gets: two ways of reading time, each of them replaceable."""

import random
import uuid

from bus.clock import Clock


def test_wall_time_may_jump_while_durations_do_not() -> None:
    wall, passed = [1_700_000_000.0], [5.0]
    clock = Clock(now=lambda: wall[0], monotonic=lambda: passed[0])
    began = clock.now(), clock.monotonic()
    wall[0] -= 3600.0
    passed[0] += 1.5
    assert (clock.now() - began[0], clock.monotonic() - began[1]) == (-3600.0, 1.5)


def test_left_alone_time_passes() -> None:
    clock = Clock()
    assert clock.monotonic() <= clock.monotonic()


def test_a_seed_pins_what_is_made_by_chance() -> None:
    assert Clock(chance=random.Random(1)).uuid() == Clock(chance=random.Random(1)).uuid()
    assert Clock().uuid() != Clock().uuid()


def test_what_it_makes_are_random_uuids_as_the_library_knows_them() -> None:
    made, library = Clock(chance=random.Random(3)), random.Random(3)
    assert [made.uuid() for _ in range(200)] == [
        str(uuid.UUID(int=library.getrandbits(128), version=4)) for _ in range(200)
    ]
