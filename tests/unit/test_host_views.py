"""Arrays over all hosts and views of one host have equal values, and follow placement's positions."""

import math

import numpy as np
import pytest

from scheduler_worker.build_counts import HALVED_AFTER
from scheduler_worker.core.host_map import AllHosts
from scheduler_worker.core.rule import HostFacts, Number, OneHost, View
from scheduler_worker.hosts import HostBook
from tests.support.ids import uid
from tests.support.index_source import RecordingSource
from tests.support.rule_builders import (
    ASKED,
    an_aggregate,
    failed_builds,
    reported_by,
    seen_at_once,
    spaced_source,
    the_facts,
)

SLOW = an_aggregate(1, most="3", odd="soon")
QUICK = an_aggregate(2, most="5.5", odd="nan")
HOSTS = [
    the_facts(1, SLOW, QUICK, traits=("T",), load=0.5, instances=3, metrics={"cpu": 7.0}),
    the_facts(2, QUICK, free={"VCPU": 1}, capacity={"VCPU": 64}, sent=9),
    the_facts(3, SLOW, enabled=False, forced_down=True, hypervisor_version=8_001_000, building=2),
    the_facts(4, down="never heard"),
    the_facts(5, failures=2.0, load=0.25),
]


def numbers_of(reads: object, facts: list[HostFacts]) -> tuple[list[float], list[float]]:
    everybody, each = seen_at_once(facts)

    def read(view: View) -> Number:
        value = reads(view)  # type: ignore[operator]
        return view.where(view.known(value), value, -99.0)

    at_once = read(everybody)
    one_by_one = [float(read(OneHost(facts))) for facts in each]
    return [float(one) for one in np.broadcast_to(at_once, len(facts))], one_by_one


@pytest.mark.parametrize(
    ("reads", "numbers"),
    [
        pytest.param(lambda view: view.free("VCPU"), [8, 1, 8, 8, 8], id="free"),
        pytest.param(lambda view: view.free("CUSTOM_NONE"), [0] * 5, id="of a class nobody has"),
        pytest.param(lambda view: view.capacity("VCPU"), [8, 64, 8, 8, 8], id="capacity"),
        pytest.param(lambda view: view.has("T"), [1, 0, 0, 0, 0], id="a trait"),
        pytest.param(lambda view: view.fact("load"), [0.5, -99, 0, -99, 0.25], id="load"),
        pytest.param(lambda view: view.fact("load", 0.125), [0.5, 0.125, 0, 0.125, 0.25], id="or else"),
        pytest.param(lambda view: view.fact("sent"), [0, 9, 0, 0, 0], id="sent there"),
        pytest.param(lambda view: view.fact("instances"), [3, -99, 0, -99, 0], id="instances"),
        pytest.param(lambda view: view.fact("enabled"), [1, -99, 0, -99, 1], id="enabled"),
        pytest.param(lambda view: view.fact("forced_down"), [0, -99, 1, -99, 0], id="forced down"),
        pytest.param(lambda view: view.fact("hypervisor_version"), [-99, -99, 8_001_000, -99, -99],
         id="version"),
        pytest.param(lambda view: view.fact("up"), [1, 1, 1, 0, 1], id="up"),
        pytest.param(lambda view: view.fact("building"), [0, 9, 2, 0, 0], id="building, and sent there"),
        pytest.param(lambda view: view.fact("failures"), [0, 0, 0, 0, 2], id="failures"),
        pytest.param(lambda view: view.metric("cpu"), [7, -99, -99, -99, -99], id="a metric"),
        pytest.param(lambda view: view.metric("none"), [-99] * 5, id="one nobody reports"),
        pytest.param(lambda view: view.override("most", 8.0), [3, 5.5, 3, 8, 8],
         id="the least of aggregates"),
        pytest.param(lambda view: view.override("odd", 8.0), [8] * 5, id="no numbers in aggregates"),
        pytest.param(lambda view: view.override("none", 8.0), [8] * 5, id="nothing in aggregates"),
        pytest.param(lambda view: view.by_root({uid(2, "c"): 2, uid(99, "c"): 1}),
         [0, 2, 0, 0, 0], id="numbers by root"),
        pytest.param(lambda view: view.among({uid(1, "c"), uid(5, "c"), uid(99, "c")}), [1, 0, 0, 0, 1],
         id="among"),
        pytest.param(lambda view: view.each(lambda host: int(host.host[-1])), [1, 2, 3, 4, 5], id="each"),
    ],
)  # fmt: skip
def test_array_and_single_host_views_agree(reads: object, numbers: list[float]) -> None:
    assert numbers_of(reads, HOSTS) == (numbers, numbers)


def each_says(name: str, book: HostBook, source: RecordingSource, now: float = 0.0) -> list[float]:
    search = source.search(ASKED)
    reply = AllHosts(search, book.snapshot(source, now)).fact(name)
    found: list[float] = np.broadcast_to(reply, len(search.positions)).tolist()
    return found


def loads(book: HostBook, source: RecordingSource, now: float = 0.0) -> list[float]:
    return [-1.0 if math.isnan(one) else one for one in each_says("load", book, source, now)]


def test_the_host_arrays_grow() -> None:
    book = HostBook(0.0)
    many = [the_facts(number, load=number / 10_000) for number in range(3000)]
    source = spaced_source(many[:10])
    assert loads(book, source) == [-1] * 10
    for facts in many:
        book.handle(reported_by(facts), 0.0)
    assert loads(book, source) == [number / 10_000 for number in range(10)]


def test_a_failure_counts_less_and_less() -> None:
    book, root = HostBook(0.0), uid(1, "c")
    book.failed("cell1", root, 0.0)
    book.failed("cell1", root, HALVED_AFTER)
    assert failed_builds(book, "cell1", root, HALVED_AFTER) == 1.5
    assert failed_builds(book, "cell1", root, 2 * HALVED_AFTER) == 0.75
    assert failed_builds(book, "cell1", uid(2, "c"), 0.0) == 0


def test_the_weight_of_failures_decreases_equally_over_a_long_time() -> None:
    book, root = HostBook(0.0), uid(1, "c")
    book.failed("cell1", root, 0.0)
    book.failed("cell1", root, 100 * HALVED_AFTER)
    assert failed_builds(book, "cell1", root, 101 * HALVED_AFTER) == pytest.approx(0.5)
    book.failed("cell1", root, 10_000 * HALVED_AFTER)
    assert failed_builds(book, "cell1", root, 10_000 * HALVED_AFTER) == 1


def test_slots_of_unknown_hosts_are_reused() -> None:
    book, source = HostBook(0.0), spaced_source([the_facts(1), the_facts(2)])
    book.handle(reported_by(the_facts(1, load=0.1)), 0.0)
    for number in range(10, 3000):
        book.chose("cell1", uid(number, "c"), 0.0)
    for second in range(1, 30):
        book.handle(reported_by(the_facts(1, load=0.5), sequence=second + 1), float(second))
    book.handle(reported_by(the_facts(2, load=0.75)), 30.0)
    assert len(book._columns.slots) < 1100
    assert loads(book, source, 30.0) == [0.5, 0.75]


def test_requested_metrics_and_images_follow_the_reports() -> None:
    book, source = HostBook(0.0), spaced_source([the_facts(1), the_facts(2)])

    def seen() -> tuple[list[float], list[float]]:
        everybody = AllHosts(source.search(ASKED), book.snapshot(source, 0.0))
        metric, cached = everybody.metric("t"), np.broadcast_to(everybody.cached("linux"), 2)
        return np.where(np.isnan(metric), -1, metric).tolist(), cached.tolist()

    assert seen() == ([-1, -1], [0, 0])
    book.handle(reported_by(the_facts(1, metrics={"t": 4.0}, images=("linux",))), 0.0)
    assert seen() == ([4, -1], [1, 0])
    book.handle(reported_by(the_facts(1, metrics={"u": 4.0}, images=("bsd",)), sequence=2), 0.0)
    book.handle(reported_by(the_facts(2, metrics={"t": 1.0}, images=("linux", "bsd"))), 0.0)
    assert seen() == ([-1, 1], [0, 1])
    everybody = AllHosts(source.search(ASKED), book.snapshot(source, 0.0))
    assert sum(everybody.cached(f"image{number}").sum() for number in range(100)) == 0
    assert seen() == ([-1, 1], [0, 1])
