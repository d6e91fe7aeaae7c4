"""A filter or weigher that raises refuses the request, with the code `rule_error` and its name; nothing
stops, nothing stays reserved, and the log gets one line a minute.
"""

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from bus.messages import BuildPlaced, BuildUnplaceable
from bus.requests import Flavor
from scheduler_worker import ChoicePolicy
from scheduler_worker.core.policy import BadChoice
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


REQUESTS: dict[str, dict[str, Any]] = {
    "of three instances": {"instances": 3},
    "with another flavor": {"or_else": (Flavor(name="less", vcpus=1, memory_mb=512),)},
}


@pytest.mark.parametrize("fields", REQUESTS.values(), ids=REQUESTS.keys())
@pytest.mark.parametrize(("kind", "made", "why"), RULES.values(), ids=RULES.keys())
async def test_a_request_is_refused_with_the_name_of_the_rule_that_failed(
    kind: str, made: Callable[..., Any], why: str, fields: dict[str, Any]
) -> None:
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


async def test_after_a_failure_the_same_batch_places_the_other_requests() -> None:
    def fails_for_big(host: Any, alternative: Any) -> str | None:
        return fails() if alternative.flavor.name == "big" else None

    _, scheduler, _ = a_cloud("filters", fails_for_big)
    big = a_request(2, flavor=Flavor(name="big", vcpus=2, memory_mb=1024, disk_gb=1))
    messages = await messages_of(scheduler, a_request(1), big, a_request(3))
    assert [type(message) for message in messages] == [BuildPlaced, BuildUnplaceable, BuildPlaced]


async def test_the_log_gets_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    _, scheduler, time = a_cloud("filters", FILTERS["a filter"][0])
    with caplog.at_level(logging.INFO):
        for number in range(1, 50):
            await messages_of(scheduler, a_request(number))
        (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert line.message.startswith("requests are refused: the filter mine raised KeyError: 'h1\\nh2' (")
        assert line.message.count("\n") == 0 and line.exc_info is None
        time.now += 61
        await messages_of(scheduler, a_request(51))
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 2


def test_a_rule_that_reads_what_no_request_has_is_refused_at_the_start() -> None:
    odd = {"mine": lambda: Rule("mine", accepts, reads=("flavour.name",))}
    with pytest.raises(BadChoice, match=r"reads flavour\.name, which no request has"):
        ChoicePolicy.from_names(["mine"], custom=odd)
