"""A filter or weigher that raises refuses the request, with the code `rule_error` and its name; nothing
stops, nothing stays reserved, and the log gets one line a minute.
"""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from bus.messages import BuildPlaced, BuildUnplaceable
from bus.requests import Flavor
from scheduler_worker import ChoicePolicy
from scheduler_worker.core.policy import BadChoice
from scheduler_worker.core.rule import Rule
from tests.support.rule_errors import FILTERS, RULES, a_cloud, accepts, check_refusal, fails
from tests.support.scheduler_builders import a_request
from tests.support.schedulers import messages_of

REQUESTS: dict[str, dict[str, Any]] = {
    "of three instances": {"instances": 3},
    "with another flavor": {"or_else": (Flavor(name="less", vcpus=1, memory_mb=512),)},
}


@pytest.mark.parametrize("fields", REQUESTS.values(), ids=REQUESTS.keys())
@pytest.mark.parametrize(("kind", "made", "why"), RULES.values(), ids=RULES.keys())
async def test_a_request_is_refused_with_the_name_of_the_rule_that_failed(
    kind: str, made: Callable[..., Any], why: str, fields: dict[str, Any]
) -> None:
    await check_refusal(kind, made, why, fields)


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
