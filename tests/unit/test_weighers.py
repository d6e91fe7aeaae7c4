"""What makes a host better than another, and how different figures become comparable."""

import pytest

from scheduler_worker.core.host import Host
from scheduler_worker.core.weighers import Weigher, Weight, builds_in_flight, free_ram, free_vcpu, load
from tests.support.scheduler_builders import a_candidate, a_host, a_request

TAKEN = Host(a_candidate(free={"VCPU": 8, "MEMORY_MB": 100}), taken={"VCPU": 3, "MEMORY_MB": 40})


@pytest.mark.parametrize(
    ("weigher", "host", "value"),
    [
        (free_ram, a_host(), 8192),
        (free_ram, TAKEN, 60),
        (free_ram, Host(a_candidate(free={"CUSTOM_BAREMETAL": 1})), 0),
        (free_vcpu, a_host(), 8),
        (free_vcpu, TAKEN, 5),
        (load, a_host(), 0.0),
        (load, a_host(load=0.75), 0.75),
        (builds_in_flight, a_host(building=2, recent=1), 3),
    ],
)
def test_weigher(weigher: Weigher, host: Host, value: float) -> None:
    assert weigher(host, a_request()) == value


@pytest.mark.parametrize(
    ("multiplier", "lowest", "values", "points"),
    [
        pytest.param(1.0, None, [2, 4, 6], [0, 0.5, 1], id="from the least to the most of the list"),
        pytest.param(1.0, 0.0, [2, 4, 8], [0.25, 0.5, 1], id="from nothing to the most"),
        pytest.param(1.0, 0.0, [-5, 0, 10], [0, 0, 1], id="less than nothing counts as nothing"),
        pytest.param(3.0, None, [0, 1], [0, 3], id="multiplied"),
        pytest.param(-1.0, None, [0, 5, 10], [0, -0.5, -1], id="a negative multiplier: more is worse"),
        pytest.param(1.0, None, [7, 7, 7], [0, 0, 0], id="all alike: nobody is better"),
        pytest.param(1.0, 0.0, [0, 0], [0, 0], id="nobody has any"),
    ],
)
def test_normalised_by_least_and_most(
    multiplier: float, lowest: float | None, values: list[float], points: list[float]
) -> None:
    scale = Weight(load, multiplier, lowest).scale(values)
    assert [scale.points(value) for value in values] == points
