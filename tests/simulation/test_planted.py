"""Bugs planted on purpose: the simulation must find each of them, or it is of no use."""

import time
from collections.abc import Callable

import pytest

from tests.simulation.planted import PLANTED, planted
from tests.simulation.running import LONG, WorldOptions, attempt

SEEDS = 200
_SMALL = 6  # requests
# found within seconds: the first seed, and the requests of a world
QUICK = {
    "claim-generation": (2, _SMALL),
    "retired-consumer": (1, _SMALL),
    "release-generation": (1, _SMALL),
    "capacity": (18, _SMALL),
    "node-class": (3, _SMALL),
    "server-group": (6, _SMALL),
    "leftover": (0, _SMALL),
    "move-source": (0, _SMALL),
    "source-stopped": (1, _SMALL),
    "attempt-number": (4, _SMALL),
    "void-attempt": (5, _SMALL),
    "headroom-outside": (5, _SMALL),
    "evaluated-again": (3, 8),
    "deleted-again": (3, 8),
}
# found within a second or two
ALWAYS = (
    "claim-generation", "retired-consumer", "release-generation", "leftover", "move-source", "void-attempt",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.soak) for name in PLANTED]
)
def test_a_planted_bug_is_found(name: str, record_property: Callable[[str, object], None]) -> None:
    first, requests = QUICK.get(name, (0, LONG))
    began = time.process_time()
    with planted(name) as bug:
        options = WorldOptions(bug.faults, requests, bug.moves, headroom=bug.headroom, metal=bug.metal)
        outcomes = (attempt(seed, options) for seed in range(first, first + SEEDS))
        found = next((outcome for outcome in outcomes if outcome.broken), None)
    assert found is not None, f"{SEEDS} seeds, and no invariant was broken"
    assert bug.complaint in found.broken
    record_property("seconds", f"{time.process_time() - began:.1f}")
    record_property("found", f"seed {found.seed}: {found.broken}")


def test_without_a_planted_bug_the_same_world_is_sound() -> None:
    assert attempt(QUICK["attempt-number"][0], WorldOptions("", _SMALL)).broken == ""
