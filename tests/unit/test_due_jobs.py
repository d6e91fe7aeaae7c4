"""Actions of an agent end at their time; those of one moment end together."""

import asyncio

import pytest

from compute_sim.jobs import LONGEST_ROUND, ROUND, AgentJob, AgentJobs
from tests.support.virtual_time import in_virtual_time


def a_job(number: int, due: float) -> AgentJob:
    return AgentJob(f"b{number}", 1, ("build", 1), "r1", 0.0, due)


@pytest.mark.parametrize(
    ("due", "told"),
    [
        ([1.0], [1.0]),
        ([1.0, 1.0], [1.0, 1.0]),
        ([1.0, 1.0 + 2 * ROUND], [1.0, 1.0 + 2 * ROUND]),  # after a quiet moment each at its time
        ([1.0, 1.0 + ROUND / 8, 1.0 + ROUND / 2], [1.0, 1.0 + ROUND, 1.0 + ROUND]),
        ([1.0, 1.0 + ROUND / 2, 1.0 + ROUND * 1.5], [1.0, 1.0 + ROUND, 1.0 + 2 * ROUND]),
        # the more ended together, the longer the next wait for company, up to a limit
        ([1.0, 1.0, 1.0 + ROUND / 2], [1.0, 1.0, 1.0 + 2 * ROUND]),
        ([*(9 * [1.0]), 1.0 + ROUND / 2], [*(9 * [1.0]), 1.0 + LONGEST_ROUND]),
        ([2.0, 1.0, 0.0], [2.0, 1.0, 0.0]),  # whichever is watched first; and what is due is over
    ],
)
@in_virtual_time
async def test_what_ends_one_upon_the_other_is_told_in_rounds(due: list[float], told: list[float]) -> None:
    jobs, time = AgentJobs(), asyncio.get_running_loop().time
    times = {}

    async def wait_for(number: int) -> None:
        assert await jobs.end(jobs.begin(a_job(number, due[number]))) == "done"
        times[number] = time()

    async with asyncio.TaskGroup() as group:
        for number in range(len(due)):
            group.create_task(wait_for(number))
    assert [times[number] for number in range(len(due))] == pytest.approx(told)


@in_virtual_time
async def test_whoever_was_handed_an_order_last_is_told_and_those_before_at_once() -> None:
    jobs = AgentJobs()
    job = jobs.begin(a_job(1, 1.0))
    first, second = jobs.end(job), jobs.end(job)
    assert await first == "handed over" and asyncio.get_running_loop().time() == 0.0
    assert await second == "done" and asyncio.get_running_loop().time() == 1.0


@in_virtual_time
async def test_a_job_that_nobody_waits_for_holds_up_none_behind_it() -> None:
    jobs = AgentJobs()
    ended, given_up, later = (jobs.end(jobs.begin(a_job(number, number / 10))) for number in (1, 2, 3))
    next(iter(jobs)).tell("destroyed")
    given_up.cancel()
    assert await later == "done" and asyncio.get_running_loop().time() == pytest.approx(0.3)
    assert await ended == "destroyed"


@in_virtual_time
async def test_what_is_lost_is_told_so_however_late_somebody_asks() -> None:
    jobs = AgentJobs()
    job = jobs.begin(a_job(1, 1.0))
    job.lost = True
    assert await jobs.end(job) == "lost"
