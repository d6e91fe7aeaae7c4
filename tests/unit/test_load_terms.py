"""The stages and the limits of a load test, as operators write them."""

import asyncio
import io
from typing import cast

import pytest
from rich.console import Console

from berth.commands.load import deleted_if_interrupted
from berth.load_limits import limit_given
from berth.load_stages import LoadStage, boots_of, due, planned, stages_given
from berth.loadtest import Boot, Load, LoadOutcome, LoadPlan, load_report
from berth.settings import BadSetting

STAGES = stages_given("10/s:30s, 0.5/s:2m")


def an_outcome(*, failed: int = 0, lost: int = 0) -> LoadOutcome:
    """Return 100 boots in 10 seconds with latencies of 1 to 100 ms, of which the last failed or were lost."""
    boots = {
        str(ms): Boot(asked=0.0, ended=ms / 1000, status="active", stage=ms % 2, late=ms / 1000)
        for ms in range(1, 101)
    }
    for number in range(100 - failed, 100):
        boots[str(number + 1)].status = "error"
    for number in range(100 - failed - lost, 100 - failed):
        boots[str(number + 1)] = Boot(asked=0.0)
    return LoadOutcome(boots, 10.0, STAGES)


def test_stages_are_rates_each_for_a_time() -> None:
    assert (LoadStage(10, 30), LoadStage(0.5, 120)) == STAGES
    assert boots_of(STAGES) == 360


@pytest.mark.parametrize(
    "text", ["10/s", "10:1m", "ten/s:1m", "0/s:1m", "10/s:0s", "10/s:1m,", "10/s:1d", "-1/s:1m", "9999/s:9h"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(BadSetting, match="--stages"):
        stages_given(text)


@pytest.mark.parametrize(
    ("seconds", "boots"),
    [(0.0, 1), (0.05, 1), (0.1, 2), (30.0, 301), (32.0, 302), (150.0, 360), (999.0, 360)],
)
def test_the_boots_that_are_due_follow_the_stages(seconds: float, boots: int) -> None:
    assert due(STAGES, seconds) == boots


@pytest.mark.parametrize(
    ("number", "at", "stage"), [(0, 0.0, 0), (299, 29.9, 0), (300, 30.0, 1), (301, 32.0, 1), (359, 148.0, 1)]
)
def test_each_boot_is_planned_at_its_time(number: int, at: float, stage: int) -> None:
    second, of = planned(STAGES, number)
    assert second == pytest.approx(at) and of == stage
    assert due(STAGES, second + 1e-6) == number + 1


def test_a_rate_is_one_stage_and_no_rate_is_none() -> None:
    assert LoadPlan(boots=100, rate=20).stages == (LoadStage(20, 5),)
    assert LoadPlan(boots=100).stages == ()


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("p99>2s", False),
        ("p99>50ms", True),
        ("p50 > 51ms", False),
        ("max<1m", True),
        ("failed>2", False),
        ("failed>1%", True),
        ("failed>2%", False),
        ("lost>0", True),
        ("speed<100/s", True),
        ("speed<9", False),
    ],
)
def test_a_load_fails_if_a_limit_holds(text: str, broken: bool) -> None:
    limit = limit_given(text)
    assert limit.is_broken(an_outcome(failed=2, lost=1)) is broken
    assert limit.sentence(an_outcome()).startswith(f"--fail-if {text}: {limit.measure} is ")


@pytest.mark.parametrize("text", ["", "p99", "p98>1s", "p99>2", "p99>2%", "failed>1s", "speed>2%", "p99>=2s"])
def test_another_limit_is_refused_with_the_limits_that_exist(text: str) -> None:
    with pytest.raises(BadSetting, match="p50, p90, p95, p99 or max with a time"):
        limit_given(text)


def test_the_delay_behind_the_plan_is_apart_from_the_latency_and_stages_have_their_own() -> None:
    summary = an_outcome().summary()
    assert (summary["late_ms"], summary["latency_ms"]["max"]) == (100.0, 100.0)
    assert [(each["stage"], each["boots"]) for each in summary["stages"]] == [
        ("10/s for 30 s", 50),
        ("0.5/s for 120 s", 50),
    ]


def test_the_report_names_broken_limits_and_escapes_reasons() -> None:
    outcome = an_outcome(failed=1)
    outcome.boots["100"].reason = "<no> disk"
    page = load_report(outcome, "100 boots", ["--fail-if p99>2s: p99 is 3 s"])
    assert "p99 is 3 s" in page and "&lt;no&gt; disk" in page and "<svg" in page


class DeletingLoad:
    boots = range(3)
    deleted = False

    async def delete(self) -> int:
        self.deleted = True
        return 0


@pytest.mark.parametrize("wanted", [True, False])
async def test_ctrl_c_deletes_the_instances_of_a_load_on_a_running_berth(wanted: bool) -> None:
    load = DeletingLoad()
    with pytest.raises(asyncio.CancelledError):
        async with deleted_if_interrupted(cast(Load, load), wanted, Console(file=io.StringIO())):
            raise asyncio.CancelledError
    assert load.deleted is wanted
