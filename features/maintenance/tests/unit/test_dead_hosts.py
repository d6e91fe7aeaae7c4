"""The rules by which hosts with missing heartbeats are fenced: never those of a network fault."""

from collections.abc import Sequence

import pytest

from features.maintenance.core.dead_hosts import (
    EvacuationJudge,
    EvacuationLimits,
    MissingHost,
    domain_sizes,
    domains_of,
)

LIMITS = EvacuationLimits(after=300.0, within=600.0, most=2, share=0.25)
NOW = 10_000.0


def a_host(
    number: int, since: float, rack: str = "", *, released: bool = False, evacuated: float = 0.0
) -> MissingHost:
    domains = (("cell", "c1"), *((("rack", rack),) if rack else ()))
    return MissingHost(f"h{number}", since, domains, released, evacuated)


def permitted(
    missing: Sequence[MissingHost], *, hosts: int = 100, in_rack: int = 20, now: float = NOW,
    limits: EvacuationLimits = LIMITS,
) -> list[str]:  # fmt: skip
    sizes = domain_sizes([(("cell", "c1"),)] * hosts + [(("rack", "r1"),)] * in_rack)
    judge = EvacuationJudge(limits, missing, sizes, now)
    candidates = [host for host in missing if judge.is_candidate(host) and not host.evacuated]
    return [host.root for host in candidates if not judge.why_held(host)]


def test_a_single_dead_host_may_be_fenced_after_the_time() -> None:
    assert permitted([a_host(1, NOW - 299)]) == []
    assert permitted([a_host(1, NOW - 300)]) == ["h1"]
    assert permitted([a_host(1, NOW - 300)], hosts=1) == ["h1"]


def test_many_hosts_lost_at_once_are_a_network_fault_and_none_is_fenced_however_long_it_lasts() -> None:
    lost = [a_host(number, NOW - 300 - number) for number in range(3)]
    for later in (0, 1000, 100_000):
        assert permitted(lost, now=NOW + later) == []


def test_hosts_that_are_not_missing_long_enough_are_counted_too() -> None:
    assert permitted([a_host(1, NOW - 300), a_host(2, NOW - 20), a_host(3, NOW - 20)]) == []


def test_a_share_of_a_rack_is_a_network_fault_of_that_rack_only() -> None:
    lost = [a_host(1, NOW - 300, "r1"), a_host(2, NOW - 300, "r1")]
    assert permitted(lost, in_rack=8) == ["h1", "h2"]
    assert permitted(lost, in_rack=7) == []
    apart = [a_host(1, NOW - 300, "r1"), a_host(2, NOW - 300)]
    assert permitted(apart, in_rack=7) == ["h1", "h2"]


def test_hosts_that_were_lost_at_different_times_are_fenced_at_a_limited_rate() -> None:
    lost = [a_host(number, NOW - 1000 * number) for number in (3, 2, 1)]
    assert permitted(lost) == ["h3", "h2"]
    before = [a_host(1, NOW - 5000, evacuated=NOW - 10), a_host(2, NOW - 4000, evacuated=NOW - 10)]
    assert permitted([*before, a_host(3, NOW - 300)]) == []
    assert permitted([*before, a_host(3, NOW - 300)], now=NOW + 600) == ["h3"]


@pytest.mark.parametrize(
    ("cells", "zone", "held"),
    [(2, "", ""), (3, "", "6 hosts of the whole cloud"), (20, "", "40 hosts of the whole cloud"),
     (2, "z1", "4 hosts of the zone z1")],
)  # fmt: skip
def test_few_hosts_of_each_of_several_cells_lost_at_once_are_a_network_fault(
    cells: int, zone: str, held: str
) -> None:
    everywhere = [domains_of(f"c{cell}", zone, "rack", "") for cell in range(cells)]
    lost = [MissingHost(str(domains), NOW - 300, domains) for domains in everywhere for _ in range(2)]
    judge = EvacuationJudge(LIMITS, lost, domain_sizes(everywhere * 100), NOW)
    reasons = [judge.why_held(host) for host in lost]
    assert all(why.startswith(held) if held else not why for why in reasons), reasons


def test_a_level_of_zones_counts_a_host_once() -> None:
    assert len(domains_of("c1", "z1", "zone", "z1")) == 3


def test_a_released_host_may_be_fenced_in_spite_of_the_limits() -> None:
    lost = [a_host(1, NOW - 300, released=True), a_host(2, NOW - 300), a_host(3, NOW - 300)]
    assert permitted(lost) == ["h1"]


@pytest.mark.parametrize("limits", [EvacuationLimits(most=0), EvacuationLimits(share=0.0)])
def test_limits_of_zero(limits: EvacuationLimits) -> None:
    expected = [] if limits.most == 0 else ["h1"]
    assert permitted([a_host(1, NOW - 300)], limits=limits) == expected
