"""Replays of small histories with the placement profiles of the feature fragmentation."""

import pytest

from bus.requests import Flavor
from features.fragmentation.filters import PROFILES
from features.quality_replay.tests.support.small_periods import (
    HALF,
    SPREAD,
    WHOLE,
    a_period,
    arrives,
    replayed,
)

PACK = SPREAD.having(placement_profile="pack")


def test_more_requests_get_a_host_with_pack_than_with_spread() -> None:
    events = [arrives(10, 1, HALF), arrives(20, 2, HALF), arrives(30, 3, WHOLE)]
    period = a_period(*events, demand=(HALF, WHOLE))
    spread, pack = replayed(period, SPREAD), replayed(period, PACK)
    assert (spread.requested, spread.refused, spread.lost) == (3, 1, 1)
    assert (pack.requested, pack.refused, pack.lost) == (3, 0, 0)


def test_the_requests_of_existing_instances_are_known_as_demand() -> None:
    eighth = Flavor(name="eighth", vcpus=1, memory_mb=1024)
    events = [arrives(10, 3, eighth), arrives(20, 4, HALF), arrives(30, 5, HALF)]
    existing = {1: (0, HALF), 2: (1, eighth)}
    unknown = replayed(a_period(*events, existing=existing), PACK)
    known = replayed(a_period(*events, existing=existing, demand=(HALF, HALF, HALF)), PACK)
    assert (unknown.refused, known.refused) == (1, 0)  # the rest of host 0 is kept for an instance of a half


@pytest.mark.parametrize("profile", ["spread", *PROFILES])
def test_replays_of_one_period_are_equal(profile: str) -> None:
    period = a_period(*(arrives(at, at, HALF) for at in range(10, 20)), hosts=4)
    settings = SPREAD.having(placement_profile=profile)
    assert replayed(period, settings) == replayed(period, settings)
