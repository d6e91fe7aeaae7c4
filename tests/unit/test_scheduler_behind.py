"""A scheduler with an outdated replica or without a host: wait, retry or end."""

from dataclasses import replace
from typing import Any

import pytest

from bus.messages import BuildPlaced, BuildUnplaceable
from bus.queries import Candidate
from bus.requests import Flavor
from scheduler_worker.core.events import (
    Begun,
    ComeAgain,
    Effect,
    Fence,
    FindHosts,
    FindRemedies,
    HelpFound,
    NoHost,
    Park,
)
from scheduler_worker.core.extra_specs import RequestOptions
from scheduler_worker.core.order import Order
from scheduler_worker.core.placing import PATIENCE, ROUNDS, step
from scheduler_worker.core.request import alternatives_of
from scheduler_worker.core.shortage import Shortage
from tests.support.scheduler_builders import SMALL, FakePlacement, TurnedClock, a_candidate, a_request
from tests.support.schedulers import scheduler_of

BIG = Flavor(name="big", vcpus=6)
FULL = {"VCPU": 0, "MEMORY_MB": 8192, "DISK_GB": 80}
TIGHT = {"VCPU": 1, "MEMORY_MB": 8192, "DISK_GB": 80}


class World:
    def __init__(self, told: list[Candidate], untold: list[Candidate]):
        self.placement = FakePlacement.of(*told, *untold)
        self.source = self.placement.source
        self.source.candidates, self.source.untold = tuple(told), list(untold)
        self.scheduler = scheduler_of(self.placement, source=self.source, clock=TurnedClock().clock)

    async def hosts(self, *requests: dict[str, Any]) -> list[str]:
        asked = [a_request(number, **fields) for number, fields in enumerate(requests, 1)]
        found: list[str] = []
        for verdict in await self.scheduler.place_many(asked):
            assert isinstance(verdict, list | tuple), verdict
            for one in verdict:
                if isinstance(one, BuildPlaced):
                    found.append(f"{one.chosen.host} {one.spec.flavor.name}")
                elif isinstance(one, BuildUnplaceable):
                    found += ["none"] * len(one.instances)
        return found


@pytest.mark.parametrize(
    ("told", "untold", "request_fields", "expected"),
    [
        pytest.param([], [a_candidate(1)], {}, ["host1 small"], id="the first host there is"),
        pytest.param([a_candidate(1, free=FULL)], [a_candidate(2)], {}, ["host2 small"], id="room elsewhere"),
        pytest.param(
            [a_candidate(1)],
            [a_candidate(2)],
            {"forced_host": "host2"},
            ["host2 small"],
            id="the host it names",
        ),
        pytest.param(
            [a_candidate(1)],
            [a_candidate(2, cell="cell2")],
            {"cell": "cell2"},
            ["host2 small"],
            id="its cell",
        ),
        pytest.param(
            [a_candidate(1)], [a_candidate(2, zone="z")], {"zone": "z"}, ["host2 small"], id="its zone"
        ),
        pytest.param(
            [a_candidate(1, free=FULL)],
            [a_candidate(2), a_candidate(3)],
            {"ignore_hosts": ("host3",)},
            ["host2 small"],
            id="not a host it does not want, whose name nobody knew",
        ),
        pytest.param(
            [a_candidate(1, free=TIGHT)],
            [a_candidate(2)],
            {"flavor": BIG, "or_else": (SMALL,)},
            ["host2 big"],
            id="the flavor it wants, and not the next best",
        ),
        pytest.param(
            [a_candidate(1, free=TIGHT)],
            [a_candidate(2)],
            {"instances": 3, "at_least": 1},
            ["host2 small"] * 3,
            id="all of its instances, and not as few as would do",
        ),
        pytest.param([a_candidate(1)], [], {"forced_host": "host2"}, ["none"], id="there is none indeed"),
    ],
)
async def test_unseen_changes_are_looked_up_first(
    told: list[Candidate], untold: list[Candidate], request_fields: dict[str, Any], expected: list[str]
) -> None:
    world = World(told, untold)
    assert sorted(await world.hosts(request_fields)) == expected
    assert world.source.levelled == 1
    assert not world.source.promised


async def test_a_batch_is_one_question() -> None:
    world = World([a_candidate(1, free=TIGHT)], [])
    assert await world.hosts({}, {}, {"flavor": BIG}, {"instances": 2}) == ["host1 small", *["none"] * 4]
    assert world.source.levelled == 1


async def test_a_request_that_finds_a_host_needs_no_query() -> None:
    world = World([a_candidate(1)], [a_candidate(2)])
    assert await world.hosts({}, {}) == ["host1 small", "host1 small"]
    assert world.source.levelled == 0


NOTHING = Shortage(considered=3)


def an_order(**request: object) -> Order:
    asked = a_request(1, **request)  # type: ignore[arg-type]
    return Order(
        request=asked,
        alternatives=alternatives_of(asked, RequestOptions(), lambda _: ()),
        instances=asked.instances,
        bytes=100,
    )


def last_of(order: Order, short: Shortage, looks: int, patience: float) -> Effect:
    order, effects = step(order, Begun(), patience)
    for _ in range(looks):
        assert isinstance(effects[0], FindHosts)
        order, effects = step(order, NoHost(short), patience)
    return effects[0]


@pytest.mark.parametrize(
    ("short", "looks", "then"),
    [
        (NOTHING, 1, FindRemedies),
        (replace(NOTHING, may_pass=True), 1, ComeAgain),
        (replace(NOTHING, promised=True), 1, FindHosts),
        (replace(NOTHING, promised=True), ROUNDS, ComeAgain),
    ],
)
def test_only_who_has_nothing_to_hope_for_ends(short: Shortage, looks: int, then: type[Effect]) -> None:
    assert isinstance(last_of(an_order(), short, looks, PATIENCE), then)


def test_remedies_are_searched_once_and_then_it_is_fenced() -> None:
    order, _ = step(an_order(), Begun(), PATIENCE)
    order, _ = step(order, NoHost(NOTHING), PATIENCE)
    order, effects = step(order, HelpFound(("another zone",)), PATIENCE)
    assert isinstance(effects[0], Fence) and order.decision.helps == ("another zone",)


@pytest.mark.parametrize("short", [NOTHING, replace(NOTHING, may_pass=True)])
def test_a_request_that_may_wait_is_parked(short: Shortage) -> None:
    assert isinstance(last_of(an_order(wait="5m"), short, 1, PATIENCE), Park)
    assert not isinstance(last_of(an_order(), short, 1, PATIENCE), Park)
