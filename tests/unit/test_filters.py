"""One row per rule: who is admitted, and what the others are told."""

import pytest

from scheduler_worker.core.filters import (
    Filter,
    at_most_building,
    few_builds_in_flight,
    host_is_enabled,
    host_is_up,
    same_zone,
)
from scheduler_worker.core.host import Host
from tests.support.scheduler_builders import a_candidate, a_host, a_request, a_state


@pytest.mark.parametrize(
    ("admits", "host", "zone", "why_not"),
    [
        pytest.param(host_is_up, a_host(), "", None, id="up"),
        pytest.param(host_is_up, a_host(down="down: silent"), "", "down: silent", id="down"),
        pytest.param(host_is_enabled, a_host(), "", None, id="not reported: enabled"),
        pytest.param(host_is_enabled, a_host(enabled=True), "", None, id="enabled"),
        pytest.param(host_is_enabled, a_host(enabled=False), "", "disabled", id="disabled"),
        pytest.param(
            host_is_enabled,
            a_host(enabled=False, why_disabled="new disk"),
            "",
            "disabled: new disk",
            id="disabled for a reason",
        ),
        pytest.param(
            host_is_enabled,
            Host(a_candidate(traits=("COMPUTE_STATUS_DISABLED",))),
            "",
            "disabled: it has the trait COMPUTE_STATUS_DISABLED",
            id="disabled as Nova does it",
        ),
        pytest.param(same_zone, a_host(zone="a"), "", None, id="any zone will do"),
        pytest.param(same_zone, a_host(zone="a"), "a", None, id="the zone asked for"),
        pytest.param(same_zone, a_host(zone="a"), "b", "in zone 'a', not in 'b'", id="another zone"),
        pytest.param(same_zone, a_host(), "b", "in zone '', not in 'b'", id="no zone"),
        pytest.param(
            same_zone,
            Host(a_candidate(zone="b"), a_state(zone="a")),
            "b",
            None,
            id="placement's word on the zone goes first",
        ),
        pytest.param(few_builds_in_flight, a_host(building=7), "", None, id="seven builds"),
        pytest.param(
            few_builds_in_flight,
            a_host(building=8),
            "",
            "building 8 already, at most 8 at once",
            id="eight builds",
        ),
        pytest.param(
            few_builds_in_flight,
            a_host(building=6, recent=2),
            "",
            "building 8 already, at most 8 at once",
            id="our own recent ones count",
        ),
        pytest.param(
            at_most_building(1),
            a_host(building=1),
            "",
            "building 1 already, at most 1 at once",
            id="another limit",
        ),
    ],
)
def test_filter(admits: Filter, host: Host, zone: str, why_not: str | None) -> None:
    assert admits(host, a_request(zone=zone)) == why_not
