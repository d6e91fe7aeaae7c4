"""Results of a load test, and their picture."""

import asyncio
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as bench
from bench import machine, runs
from bench.durable import DurableRates
from bench.embedded_boots import embedded_boots
from bench.figures import BenchRun, Figure, MachineFacts, Measured, Yardstick, compared
from bench.suite import SUITE, Benchmark, BenchSizes
from berth.commands.load import LoadOptions, load_flavors, refuse_unused
from berth.loadtest import Boot, Load, LoadOutcome, LoadPlan, latency_svg, percentile
from bus import topics
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.local import LocalBroker, LocalTransport
from bus.messages import (
    Attempt,
    BuildCancelRequested,
    BuildDeleted,
    BuildDeleteRequested,
    BuildEnded,
    BuildRequested,
    BuildUnplaceable,
)
from bus.vocabulary import Message
from bus.worker import Worker, on_many
from tests.support.waiting import patience


@pytest.mark.parametrize(
    ("values", "share", "value"),
    [
        ([], 0.5, 0.0),
        ([7.0], 0.0, 7.0),
        ([7.0], 1.0, 7.0),
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        (list(range(100)), 0.99, 99),
        (list(range(100)), 0.5, 50),
        (list(range(100)), 1.0, 99),
    ],
)
def test_percentile(values: list[float], share: float, value: float) -> None:
    assert percentile(values, share) == value


def a_result() -> LoadOutcome:
    return LoadOutcome(
        {
            "a": Boot(asked=0.0, ended=1.0, status="active", host="h1", attempts=1, ends=1),
            "b": Boot(asked=1.0, ended=4.0, status="active", host="h2", attempts=2, ends=2),
            "c": Boot(asked=1.0, ended=2.0, status="unplaceable", reason="no room", ends=1),
            "d": Boot(asked=1.0),
        },
        seconds=4.0,
    )


def test_the_figures_of_a_load() -> None:
    assert a_result().summary() == {
        "boots": 4,
        "seconds": 4.0,
        "boots_per_second": 0.8,  # three ended in four seconds, rounded
        "ended": {"active": 2, "unplaceable": 1, "lost": 1},
        "attempts": {"1": 1, "2": 1},
        "latency_ms": {"p50": 1000.0, "p90": 3000.0, "p95": 3000.0, "p99": 3000.0, "max": 3000.0},
        "late_ms": 0.0,
        "stages": [],
        "ended_more_than_once": 1,
        "ended_two_ways": 0,
        "reasons": {"no room": 1},
    }
    assert (a_result().lost, a_result().changed, a_result().failed) == (1, 0, 1)


Answer = Callable[[Load, Sequence[BuildRequested]], Awaitable[Sequence[Sequence[Message]]]]


def reply(words: str, request: BuildRequested) -> Message:
    """`no host`, or a status and a host."""
    if words == "no host":
        return BuildUnplaceable(
            request=request.request, instances=request.instances, reason="no room", reply_to=request.reply_to
        )
    status, host = words.split()
    return BuildEnded(
        build=request.instances[0],
        request=request.request,
        cell="c1",
        status="active" if status == "active" else "error",
        host=host,
        attempts=(Attempt(host=host, outcome="built"),),
        reply_to=request.reply_to,
    )


async def load_with(answer: Answer, plan: LoadPlan) -> LoadOutcome:
    broker = LocalBroker()
    stopping = asyncio.Event()
    async with Bus(LocalTransport(broker)) as bus, Bus(LocalTransport(broker)) as theirs:
        load = Load(bus, plan)

        async def handle(requests: Sequence[BuildRequested]) -> Sequence[Sequence[Message]]:
            return await answer(load, requests)

        emits = [topics.BUILD_ENDED, topics.BUILD_UNPLACEABLE]
        worker = Worker("berth", [on_many(topics.BUILD_REQUESTED, handle, emits=emits)])
        await bus.transport.declare(worker.queue_of(worker.consumes[0]))
        async with asyncio.TaskGroup() as group, patience():
            group.create_task(theirs.serve(worker, stopping))
            result = await load.run()
            stopping.set()
    return result


@pytest.mark.parametrize(
    ("first", "then", "changed"),
    [
        ("active h1", [], 0),
        ("active h1", ["active h1"], 0),
        ("active h1", ["active h1", "active h1"], 0),
        ("error h1", ["error h1"], 0),
        ("no host", ["no host"], 0),
        ("active h1", ["active h2"], 1),
        ("active h1", ["error h1"], 1),
        ("active h1", ["active h1", "error h1", "active h1"], 1),
        ("no host", ["active h1"], 1),
        ("active h1", ["no host"], 1),
    ],
)
async def test_a_second_different_end_of_a_build_is_an_error(
    first: str, then: list[str], changed: int
) -> None:
    sent: list[str] = []

    async def answer(load: Load, requests: Sequence[BuildRequested]) -> Sequence[Sequence[Message]]:
        (request,) = requests
        sent.append(request.request)
        if len(sent) == 1:
            return [[reply(words, request) for words in (first, *then)]]
        while load.boots[sent[0]].ends < 1 + len(then):
            await asyncio.sleep(0.001)
        return [[reply("active h9", request)]]

    result = await load_with(answer, LoadPlan(boots=2, window=1, patience=10.0))
    assert (result.boots[sent[0]].ends, result.changed, result.lost) == (1 + len(then), changed, 0)
    assert result.statuses.total() == 2
    if not changed:
        assert result.boots[sent[0]].status == {"no host": "unplaceable"}.get(first, first.split()[0])
        assert result.boots[sent[0]].host == {"no host": ""}.get(first, first.split()[1])


async def test_boots_that_never_end_are_lost() -> None:
    async def answer(load: Load, requests: Sequence[BuildRequested]) -> Sequence[Sequence[Message]]:
        return [[] for _ in requests]

    result = await load_with(answer, LoadPlan(boots=3, patience=0.3))
    assert (result.lost, result.statuses, result.per_second) == (3, {"lost": 3}, 0.0)


async def test_the_instances_of_a_load_are_deleted_in_their_cells_and_the_missing_reports_counted() -> None:
    broker, stopping = LocalBroker(), asyncio.Event()
    deleted, cancelled = list[str](), list[str]()

    async def end(requests: Sequence[BuildRequested]) -> Sequence[Sequence[Message]]:
        assert {request.name for request in requests} == {load.name}
        words = ("active h1", "error h1", "active h2", "no host", "")
        built = (reply(words[at], request) for at, request in enumerate(requests) if words[at])
        return [list(built), *([] for _ in requests[1:])]

    async def delete(orders: Sequence[BuildDeleteRequested]) -> Sequence[Sequence[Message]]:
        deleted.extend(order.build for order in orders)
        reports = [BuildDeleted(build=order.build, cell="c1", reply_to=load.name) for order in orders[1:]]
        return [reports, *([] for _ in orders[1:])]

    async def cancel(orders: Sequence[BuildCancelRequested]) -> Sequence[Sequence[Message]]:
        cancelled.extend(order.build for order in orders)
        return [[] for _ in orders]

    async with Bus(LocalTransport(broker)) as bus, Bus(LocalTransport(broker)) as theirs:
        load = Load(bus, LoadPlan(boots=5, patience=0.5))
        ends = [topics.BUILD_ENDED, topics.BUILD_UNPLACEABLE]
        worker = Worker("berth", [
            on_many(topics.BUILD_REQUESTED, end, emits=ends),
            on_many(topics.BUILD_DELETE, delete, emits=[topics.BUILD_DELETED]),
            on_many(topics.BUILD_CANCEL, cancel),
        ])  # fmt: skip
        for consumed in worker.consumes:
            await bus.transport.declare(worker.queue_of(consumed))
        async with asyncio.TaskGroup() as group, patience():
            group.create_task(theirs.serve(worker, stopping))
            result = await load.run()
            left = await load.delete()
            stopping.set()
    assert result.statuses == {"active": 2, "error": 1, "unplaceable": 1, "lost": 1}
    assert left == 1 and {*deleted} == {build for build, boot in result.boots.items() if boot.host}
    assert cancelled == [build for build, boot in result.boots.items() if boot.status == "lost"]


async def test_the_window_limits_the_builds_in_flight() -> None:
    most = 0

    async def answer(load: Load, requests: Sequence[BuildRequested]) -> Sequence[Sequence[Message]]:
        nonlocal most
        most = max(most, load.open)
        return [[reply("active h1", request)] for request in requests]

    result = await load_with(answer, LoadPlan(boots=23, window=5, patience=10.0))
    assert (result.statuses, most) == ({"active": 23}, 5)


def test_a_mix_excludes_options_of_one_flavor() -> None:
    with pytest.raises(OperationRefused, match="--mix and --memory-mb"):
        load_flavors(LoadOptions(mix=5, memory_mb=1024))


SVG = "{http://www.w3.org/2000/svg}"


def an_outcome(boots: int, seconds: float = 10.0, latency: float = 0.05) -> LoadOutcome:
    return LoadOutcome(
        {
            str(number): Boot(
                asked=seconds * number / boots, ended=seconds * number / boots + latency, status="active"
            )
            for number in range(boots)
        },
        seconds,
    )


@pytest.mark.parametrize(
    "result",
    [
        an_outcome(1),
        an_outcome(2, latency=0.0001),
        an_outcome(100),
        an_outcome(9000, latency=70.0),
        LoadOutcome({"a": Boot(asked=0.0, ended=0.0, status="active")}, 0.0),
        LoadOutcome({"a": Boot(asked=0.0)}, 0.0),
        LoadOutcome({}, 0.0),
    ],
    ids=["one", "two quick ones", "a hundred", "thousands of slow ones", "at once", "all lost", "nothing"],
)
def test_the_picture_is_well_formed_and_inside_the_page(result: LoadOutcome) -> None:
    page = ElementTree.fromstring(latency_svg(result, "a title"))
    assert page.tag == f"{SVG}svg"
    _, _, width, height = (float(number) for number in page.attrib["viewBox"].split())
    for dot in page.iter(f"{SVG}circle"):
        assert 0 <= float(dot.attrib["cx"]) <= width
        assert 0 <= float(dot.attrib["cy"]) <= height
    for bar in page.iter(f"{SVG}rect"):
        assert not bar.attrib["width"].startswith("-")
        assert not bar.attrib["height"].startswith("-")


MACHINE = MachineFacts(processor="one", cores=2, load=0.0, python="3", rabbitmq="3", postgresql="15")


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runs, "KEPT", tmp_path / "runs")
    monkeypatch.setattr(runs, "RECORDED", tmp_path / "recorded.json")
    monkeypatch.setattr(machine, "facts", lambda: MACHINE)  # asking RabbitMQ's version takes an Erlang
    monkeypatch.setattr(machine, "_TURN", 0.001)
    monkeypatch.setattr(bench, "broker_and_database", lambda: nullcontext(("amqp:", "postgresql:")))
    monkeypatch.setattr(machine, "durable_rates", lambda *urls: DurableRates(4000.0, 30_000.0))
    return tmp_path


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Figure]]:
    finds = {"one": [Figure("f", 10.0, "/s", "up", "")], "two": [Figure("g", 5.0, "ms", "down", "")]}

    def made(name: str) -> Benchmark:
        return Benchmark(name, 1, lambda sizes: tuple(finds[name]))

    monkeypatch.setattr(bench, "SUITE", {name: made(name) for name in finds})
    return finds


def test_a_recorded_run_is_compared_with_the_next(
    kept: Path, suite: dict[str, list[Figure]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--record"]) == 0
    assert "nothing is recorded yet" in capsys.readouterr().out
    suite["one"] = [Figure("f", 5.0, "/s", "up", "")]
    assert bench.main(["--json", str(kept / "mine.json")]) == 0
    printed = capsys.readouterr().out
    assert "0.50 ×" in printed
    assert "worse by more than a tenth: one f" in printed
    assert "then: recorded.json" in printed
    assert "yardstick: 4,000 confirmed publishes/s, 30,000 inserted rows/s" in printed
    measured = runs.read(kept / "mine.json").benches["one"]
    assert measured.figures[0].value == 5.0
    assert (measured.yardstick.publishes, measured.yardstick.inserts) == (4000.0, 30_000.0)
    words = json.dumps(json.loads((kept / "recorded.json").read_text()))
    assert str(kept) not in words
    assert str(Path.home()) not in words


def test_a_failed_benchmark_does_not_stop_the_suite(
    kept: Path, suite: dict[str, list[Figure]], capsys: pytest.CaptureFixture[str]
) -> None:
    del suite["one"]
    assert bench.main(["--record", "--json", str(kept / "mine.json")]) == 1
    assert "FAILED: one: KeyError: 'one'" in capsys.readouterr().err
    assert runs.read(kept / "mine.json").benches.keys() == {"two"}
    assert not (kept / "recorded.json").exists()


@pytest.mark.parametrize("words", [["three"], ["--mix", "1"], ["--mix", "100000"]])
def test_an_unknown_benchmark_or_mix_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench.main(words)


def test_a_tiny_run_from_end_to_end(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tiny(sizes: BenchSizes) -> tuple[Figure, ...]:
        return embedded_boots(200, 40, sizes.flavors)

    monkeypatch.setitem(SUITE, "embedded", Benchmark("tiny", 1, tiny))
    assert bench.main(["embedded", "--json", str(kept / "tiny.json")]) == 0
    figures = runs.read(kept / "tiny.json").benches["embedded"].figures
    assert [figure.name for figure in figures] == ["boots/s", "processor a boot, the load's too"]
    assert all(figure.value > 0 for figure in figures)


def a_run(
    figures: Sequence[Figure], clock: float = 100.0, processor: float = 100.0, name: str = "b"
) -> BenchRun:
    measured = Measured(tuple(figures), Yardstick(clock, processor), 1.0)
    return BenchRun(at="then", commit="c", long=False, machine=MACHINE, benches={name: measured})


def test_a_new_benchmark_has_no_ratio() -> None:
    was, now = Figure("known", 1.0, "s", "down"), Figure("other", 1.0, "s", "down")
    assert [(one.was, one.ratio) for one in compared(a_run([was, now]), a_run([was]))] == [
        (1.0, 1.0),
        (None, None),
    ]
    assert compared(a_run([was]), None)[0].ratio is None
    assert compared(a_run([was]), a_run([was], name="another"))[0].ratio is None


@pytest.mark.parametrize(
    ("option", "name"),
    [({"fail": 0.5}, "--fail"), ({"hosts": 3}, "--hosts"), ({"build_time": "1s"}, "--build-time")],
    ids=str,
)
def test_options_of_hosts_are_refused_if_the_berth_runs_already(option: dict[str, Any], name: str) -> None:
    with pytest.raises(OperationRefused, match=f"--attach and {name}: "):
        refuse_unused(LoadOptions(attach=True, **option))
    refuse_unused(LoadOptions(**option))
    refuse_unused(LoadOptions(attach=True, boots=5))
