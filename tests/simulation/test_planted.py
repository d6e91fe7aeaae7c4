"""Bugs planted on purpose: the simulation must find each of them, or it is of no use."""

import time
from collections.abc import Callable

import pytest

from tests.simulation.planted import PLANTED, planted
from tests.simulation.running import Options, attempt

SEEDS = 200
# found in more than two seconds of one core
_SLOW = {"acknowledged-first", "unconfirmed", "orders-repeated", "fail-over", "server-group", "fenced-ends"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak if name in _SLOW else ()) for name in PLANTED]
)
def test_a_planted_bug_is_found(name: str, record_property: Callable[[str, object], None]) -> None:
    began = time.process_time()
    with planted(name) as bug:
        options = Options(bug.faults, bug.requests, bug.moves)
        outcomes = (attempt(seed, options) for seed in range(bug.first, bug.first + SEEDS))
        found = next((outcome for outcome in outcomes if outcome.broken), None)
    assert found is not None, f"{SEEDS} seeds, and no invariant was broken"
    assert bug.complaint in found.broken
    record_property("seconds", f"{time.process_time() - began:.1f}")
    record_property("found", f"seed {found.seed}: {found.broken}")


def test_without_a_planted_bug_the_same_worlds_are_sound() -> None:
    assert attempt(3, Options("", 6)).broken == ""
