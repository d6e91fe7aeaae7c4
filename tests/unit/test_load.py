"""Results of a load test, and their picture."""

import asyncio
import xml.etree.ElementTree as ElementTree
from collections.abc import Awaitable, Callable, Sequence

import pytest

from berth.commands.load import load_flavors
from berth.loadtest import MIX, Boot, Load, LoadOutcome, LoadPlan, latency_svg, percentile
from bus import topics
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.local import LocalBroker, LocalTransport
from bus.messages import Attempt, BuildEnded, BuildRequested, BuildUnplaceable
from bus.vocabulary import Message
from bus.worker import Worker, on_many


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
        "told_more_than_once": 1,
        "ended_two_ways": 0,
        "reasons": {"no room": 1},
    }
    assert (a_result().lost, a_result().changed) == (1, 0)


Answer = Callable[[Load, Sequence[BuildRequested]], Awaitable[Sequence[Sequence[Message]]]]


def said(words: str, request: BuildRequested) -> Message:
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
        async with asyncio.TaskGroup() as group, asyncio.timeout(60):
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
async def test_the_same_end_told_twice_is_one_end_and_another_is_a_broken_promise(
    first: str, then: list[str], changed: int
) -> None:
    told: list[str] = []

    async def answer(load: Load, requests: Sequence[BuildRequested]) -> Sequence[Sequence[Message]]:
        (request,) = requests
        told.append(request.request)
        if len(told) == 1:
            return [[said(words, request) for words in (first, *then)]]
        while load.boots[told[0]].ends < 1 + len(then):
            await asyncio.sleep(0.001)
        return [[said("active h9", request)]]

    result = await load_with(answer, LoadPlan(boots=2, window=1, patience=10.0))
    assert (result.boots[told[0]].ends, result.changed, result.lost) == (1 + len(then), changed, 0)
    assert result.statuses.total() == 2
    if not changed:
        assert result.boots[told[0]].status == {"no host": "unplaceable"}.get(first, first.split()[0])
        assert result.boots[told[0]].host == {"no host": ""}.get(first, first.split()[1])


async def test_boots_that_never_end_are_lost() -> None:
    async def answer(load: Load, requests: Sequence[BuildRequested]) -> Sequence[Sequence[Message]]:
        return [[] for _ in requests]

    result = await load_with(answer, LoadPlan(boots=3, patience=0.3))
    assert (result.lost, result.statuses, result.per_second) == (3, {"lost": 3}, 0.0)


async def test_no_more_are_in_flight_than_the_window_allows() -> None:
    most = 0

    async def answer(load: Load, requests: Sequence[BuildRequested]) -> Sequence[Sequence[Message]]:
        nonlocal most
        most = max(most, load.open)
        return [[said("active h1", request)] for request in requests]

    result = await load_with(answer, LoadPlan(boots=23, window=5, patience=10.0))
    assert (result.statuses, most) == ({"active": 23}, 5)


async def test_a_load_draws_its_flavors_by_its_seed() -> None:
    asked: list[list[str]] = []

    async def answer(load: Load, requests: Sequence[BuildRequested]) -> Sequence[Sequence[Message]]:
        asked[-1] += [request.flavor.name for request in requests]
        return [[said("active h1", request)] for request in requests]

    for seed in (1, 1, 2):
        asked.append([])
        await load_with(answer, LoadPlan(boots=60, window=60, patience=10.0, seed=seed))
    assert asked[0] == asked[1] != asked[2]
    assert len(set(asked[0])) > MIX / 2


def test_a_mix_and_one_flavor_are_not_both_to_be_had() -> None:
    with pytest.raises(OperationRefused, match="--mix and --memory-mb"):
        load_flavors(5, None, 1024, None)


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


def words_of(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


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


def test_the_picture_of_very_many_boots_shows_a_sample() -> None:
    dots = list(ElementTree.fromstring(latency_svg(an_outcome(20_000), "many")).iter(f"{SVG}circle"))
    assert 4_000 <= len(dots) <= 8_000


def test_an_empty_load_says_so() -> None:
    assert words_of(latency_svg(LoadOutcome({}, 0.0), "nothing")) == ["nothing", "no boot ended"]
