"""A request without a host at the moment: retry, wait or end."""

from dataclasses import replace

import pytest

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
from scheduler_worker.core.order import Order
from scheduler_worker.core.placing import PlacingLimits, step
from scheduler_worker.core.request import alternatives_of
from scheduler_worker.core.request_options import RequestOptions
from scheduler_worker.core.shortage import Shortage
from tests.support.scheduler_builders import a_request

NOTHING = Shortage(considered=3)
LIMITS = PlacingLimits()


def an_order(**request: object) -> Order:
    asked = a_request(1, **request)  # type: ignore[arg-type]
    return Order(
        request=asked,
        alternatives=alternatives_of(asked, RequestOptions(), lambda _: ()),
        instances=asked.instances,
        bytes=100,
    )


def last_of(order: Order, short: Shortage, looks: int, limits: PlacingLimits) -> Effect:
    order, effects = step(order, Begun(), limits)
    for _ in range(looks):
        assert isinstance(effects[0], FindHosts)
        order, effects = step(order, NoHost(short), limits)
    return effects[0]


@pytest.mark.parametrize(
    ("short", "looks", "then"),
    [
        (NOTHING, 1, FindRemedies),
        (replace(NOTHING, may_pass=True), 1, ComeAgain),
        (replace(NOTHING, promised=True), 1, FindHosts),
        (replace(NOTHING, promised=True), LIMITS.rounds, ComeAgain),
    ],
)
def test_only_who_has_nothing_to_hope_for_ends(short: Shortage, looks: int, then: type[Effect]) -> None:
    assert isinstance(last_of(an_order(), short, looks, LIMITS), then)


def test_what_would_have_helped_is_looked_for_once_and_then_it_is_fenced() -> None:
    order, _ = step(an_order(), Begun(), LIMITS)
    order, _ = step(order, NoHost(NOTHING), LIMITS)
    order, effects = step(order, HelpFound(("another zone",)), LIMITS)
    assert isinstance(effects[0], Fence) and order.decision.helps == ("another zone",)


@pytest.mark.parametrize("short", [NOTHING, replace(NOTHING, may_pass=True)])
def test_who_may_wait_is_kept(short: Shortage) -> None:
    limits = replace(LIMITS, parks=True)
    assert isinstance(last_of(an_order(wait="5m"), short, 1, limits), Park)
    assert not isinstance(last_of(an_order(), short, 1, limits), Park)
