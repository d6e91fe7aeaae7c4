"""Filters and weighers of an operator that raise, and the refusal of a request that meets one."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bus.messages import BuildPlaced, BuildUnplaceable
from scheduler_worker import ChoicePolicy
from scheduler_worker.core.rule import Rule, Weigher
from scheduler_worker.placing.scheduler import Scheduler
from tests.support.scheduler_builders import FakePlacement, a_candidate, a_heartbeat, a_request
from tests.support.schedulers import messages_of, scheduler_of
from tests.support.virtual_time import TurnedClock

TIMES = itertools.count()


def fails(*given: Any) -> Any:
    raise KeyError("h1\nh2")


def ends(*given: Any) -> Any:
    raise SystemExit(3)


def fails_after_two(host: Any, alternative: Any) -> str | None:
    """Fail at every third host."""
    return fails() if next(TIMES) % 3 == 2 else None


def accepts(host: Any, alternative: Any) -> None:
    return None


FILTERS: dict[str, tuple[Callable[..., Any], str]] = {
    "a filter": (lambda host, alternative: fails(), "KeyError: 'h1\\nh2'"),
    "a filter that ends the process": (lambda host, alternative: ends(), "SystemExit: 3"),
    "a filter that fails later": (fails_after_two, "KeyError"),
    "a filter without a reason": (lambda host, alternative: False, "it returned False, no text or None"),
    "a filter on arrays": (lambda: Rule("mine", accepts, admits=fails), "KeyError"),
    "a filter with a mask of texts": (
        lambda: Rule("mine", accepts, admits=lambda view, alternative: "yes"), "it returned 'yes', no number",
    ),
    "a filter with a short mask": (
        lambda: Rule("mine", accepts, admits=lambda view, alternative: np.ones(1, bool)), "1 results for 4",
    ),
    "a filter that does not know whether it applies": (
        lambda: Rule("mine", accepts, concerns=fails), "KeyError",
    ),
}  # fmt: skip
WEIGHERS: dict[str, tuple[Callable[..., Any], str]] = {
    "a weigher": (lambda host, alternative: fails(), "KeyError"),
    "a weigher that returns a text": (lambda host, alternative: "heavy", "ValueError"),
    "a weigher on arrays": (lambda: Weigher("mine", fails), "KeyError"),
    "a weigher that returns nothing": (
        lambda: Weigher("mine", lambda view, alternative: None), "returned None",
    ),
    "a weigher with too few numbers": (
        lambda: Weigher("mine", lambda view, alternative: np.arange(2.0)), "2 numbers for 4 hosts",
    ),
}  # fmt: skip
RULES = {
    **{what: ("filters", made, why) for what, (made, why) in FILTERS.items()},
    **{what: ("weighers", made, why) for what, (made, why) in WEIGHERS.items()},
}


def a_cloud(kind: str, made: Callable[..., Any]) -> tuple[FakePlacement, Scheduler, TurnedClock]:
    """Return four hosts and a scheduler with one filter or weigher of an operator, `mine`."""
    choice: dict[str, Any] = {"filters": ["up"], "weighers": ["ram"]}
    choice[kind] = [*choice[kind], "mine"]
    policy = ChoicePolicy.from_names(**choice, custom={"mine": made})
    placement, time = FakePlacement(*(a_candidate(number) for number in range(4))), TurnedClock()
    return placement, scheduler_of(placement, policy=policy, clock=time.clock), time


async def check_refusal(kind: str, made: Callable[..., Any], why: str, fields: dict[str, Any]) -> None:
    """Check that a request with these fields is refused with the name of the rule, and keeps no capacity."""
    placement, scheduler, _ = a_cloud(kind, made)
    for number in range(4):
        await scheduler.handle(a_heartbeat(number))
    messages: Sequence[BuildPlaced | BuildUnplaceable] = ()
    for number in range(1, 9):  # a filter that fails at some hosts only does not fail for each request
        messages = await messages_of(scheduler, a_request(number, **fields))
        if isinstance(messages[0], BuildUnplaceable):
            break
    (refused,) = messages
    assert isinstance(refused, BuildUnplaceable)
    assert refused.decision.code == "rule_error"
    word = "filter" if kind == "filters" else "weigher"
    assert refused.reason.startswith(f"the {word} mine raised ") and why in refused.reason
    assert not scheduler.pending.unsettled
    assert set(refused.instances) <= placement.retired.keys()
