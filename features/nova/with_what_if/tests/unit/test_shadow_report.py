"""The comparison of Nova's scheduler with berth's, as a function of stored requests and results."""

from typing import Any

import pytest

from bus.reports import HostState
from features.nova.core.cloud import NovaCloud, NovaHost
from features.nova.core.request_spec import NovaFlavor
from features.nova.with_what_if.core.fragmentation import free_memory
from features.nova.with_what_if.core.shadow_report import (
    DecidedRequest,
    NovaOutcome,
    imbalance,
    merged_periods,
    of_instance,
    percentile,
    report,
)
from features.nova.with_what_if.messages import MissingPeriod, NovaReportFound


def decided(number: int, *hosts: str, **fields: Any) -> DecidedRequest:
    known: dict[str, Any] = {
        "request": f"req-{number}",
        "instance": f"i{number}",
        "at": 10.0 * number,
        **fields,
    }
    return DecidedRequest(**{"id": f"d{number}", "hosts": hosts, "seconds": 0.02, **known})


def outcome(number: int, event: Any, after: float = 2.0, **fields: Any) -> NovaOutcome:
    known: dict[str, Any] = {"request": f"req-{number}", "instance": f"i{number}", **fields}
    return NovaOutcome(event=event, at=10.0 * number + after, **known)


def used(number: int, host: str, after: float = 2.0, **fields: Any) -> NovaOutcome:
    return outcome(number, "used", after, host=host, **{"operation": "boot", **fields})


def refused(number: int, cause: str = "NoValidHost", **fields: Any) -> NovaOutcome:
    return outcome(number, "refused", cause=cause, reason="full", **{"operation": "boot", **fields})


def selected(number: int, after: float = 0.1, **fields: Any) -> NovaOutcome:
    return outcome(number, "selected", after, **fields)


def a_host(name: str, memory: int, vcpus: int) -> NovaHost:
    state = HostState(root=name, host=name)
    return NovaHost(name, name, name, "c", 1, state, free_memory_mb=memory, free_vcpus=vcpus)


def found(
    requests: list[DecidedRequest], outcomes: list[NovaOutcome], *hosts: str, **more: Any
) -> NovaReportFound:
    return report(requests, outcomes, hosts, **more)


CASES: dict[str, tuple[DecidedRequest, list[NovaOutcome], str]] = {
    "the same host": (decided(1, "a"), [used(1, "a")], "same"),
    "another host": (decided(1, "a"), [used(1, "b")], "different"),
    "the first host of a build with several attempts counts": (
        decided(1, "a"), [used(1, "b", 9.0), used(1, "a", 3.0)], "same",
    ),
    "the clock of a compute host is behind": (decided(1, "a"), [used(1, "a", -3.0)], "same"),
    "nova found no host": (decided(1, "a"), [refused(1)], "nova refused"),
    "a build failed everywhere": (
        decided(1, "a"), [selected(1), refused(1, "MaxRetriesExceeded"), used(1, "b")], "different",
    ),
    "a move failed for another reason": (decided(1, "a"), [refused(1, "MigrationPreCheckError")], "open"),
    "no host for an alternate is no refusal": (decided(1, "a"), [selected(1), refused(1)], "open"),
    "berth found no host": (decided(1, reason="zone", code="zone"), [used(1, "a")], "berth refused"),
    "nobody found one": (decided(1, code="zone"), [refused(1)], "both refused"),
    "berth could not decide": (decided(1, undecided="NUMA"), [used(1, "a")], "undecided"),
    "berth decided after a restart": (decided(1, "a", lag=6.0), [used(1, "a")], "late"),
    "nova still works on it": (decided(1, "a"), [selected(1)], "open"),
    "a result of another request of the instance": (
        decided(1, "a"), [used(1, "b", request="req-9")], "open",
    ),
    "all hosts of a multi-create": (
        decided(1, "a", "a", "b", instances=3),
        [used(1, "b"), used(1, "a", instance="i2"), used(1, "a", instance="i3")],
        "same",
    ),
    "one host of a multi-create differs": (
        decided(1, "a", "b", instances=2), [used(1, "a"), used(1, "a", instance="i2")], "different",
    ),
    "a multi-create for which placement had no candidates": (
        decided(1, "a", "b", instances=2, is_searched=False),
        [refused(1), refused(1, instance="i2")],
        "nova refused",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("request_", "outcomes", "verdict"), CASES.values(), ids=CASES.keys())
def test_each_request_has_a_verdict(
    request_: DecidedRequest, outcomes: list[NovaOutcome], verdict: str
) -> None:
    [shown] = of_instance([request_], outcomes)
    assert shown.verdict == verdict
    counted = found([request_], outcomes)
    assert getattr(counted, verdict.replace(" ", "_")) == counted.requests == 1
    assert of_instance([request_], outcomes[::-1]) == (shown,), "the order of arrival is of no importance"


def test_fragmentation_is_the_mean_share_of_memory_on_hosts_where_the_flavor_fits_no_more() -> None:
    disabled = NovaHost("x", "x", "x", "c", 1, HostState(root="x", host="x", enabled=False), 9999, 99)
    hosts = {
        "full": a_host("full", memory=100, vcpus=0),
        "last": a_host("last", memory=300, vcpus=1),
        "roomy": a_host("roomy", memory=700, vcpus=8),
        "disabled": disabled,
    }
    free = free_memory(NovaCloud(hosts=hosts), NovaFlavor(memory_mb=100, vcpus=1))
    requests = [decided(1, "roomy", free=free), decided(2, "last", free=free)]
    several = decided(3, "last", "last", instances=2, free=free)
    outcomes = [used(number, "last") for number in (1, 2, 3)]
    counted = found([*requests, several], [*outcomes, used(3, "last", instance="i4")])
    assert counted.same + counted.different == 3
    assert counted.berth.fragmentation == pytest.approx((0.1 + 0.3) / 2)
    assert counted.nova.fragmentation == pytest.approx(0.3)
    assert found([decided(1, "a")], [used(1, "a")]).nova.fragmentation is None


def test_missing_periods_that_overlap_are_one() -> None:
    periods = [MissingPeriod(since=since, until=until) for since, until in ((5, 8), (1, 3), (2, 4))]
    expected = (MissingPeriod(since=1, until=4), MissingPeriod(since=5, until=8))
    assert merged_periods(periods) == expected


@pytest.mark.parametrize(
    ("instances", "expected"), [([], None), ([0, 0], None), ([2, 2, 2], 0.0), ([4, 0], 1.0), ([1, 3], 0.5)]
)
def test_imbalance_is_the_coefficient_of_variation(instances: list[int], expected: float | None) -> None:
    assert imbalance(instances) == expected


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([], 50, None), ([3.0], 99, 3.0), ([2.0, 1.0], 50, 1.0), ([1.0, 2.0, 3.0], 99, 3.0)],
)
def test_a_percentile_is_one_of_the_values(values: list[float], percent: int, expected: float | None) -> None:
    assert percentile(values, percent) == expected
