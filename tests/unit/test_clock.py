"""The replaceable clock, and retries of lost races."""

import asyncio
import random
import uuid

import pytest

from bus.clock import Clock, ReportSequence
from bus.sql.failures import ATTEMPTS, LONGEST_WAIT, SHORTEST_WAIT, Conflict, retrying
from bus.vocabulary import MAX_ORDINAL
from compute_sim.guests import LONGEST_ROUND, ROUND, AgentJob, AgentJobs
from tests.support.virtual_time import in_virtual_time


def test_wall_time_may_jump_while_durations_do_not() -> None:
    turned, passed = [1_700_000_000.0], [5.0]
    clock = Clock(now=lambda: turned[0], monotonic=lambda: passed[0])
    began = clock.now(), clock.monotonic()
    turned[0] -= 3600.0
    passed[0] += 1.5
    assert (clock.now() - began[0], clock.monotonic() - began[1]) == (-3600.0, 1.5)


def test_identifiers_are_random_uuids() -> None:
    made, library = Clock(chance=random.Random(3)), random.Random(3)
    assert [made.uuid() for _ in range(200)] == [
        str(uuid.UUID(int=library.getrandbits(128), version=4)) for _ in range(200)
    ]


class RetriedRace:
    def __init__(self, losses: int, error: type[Exception] = Conflict) -> None:
        self.losses = losses
        self.error = error
        self.runs = 0

    async def __call__(self, lap: int = 0) -> str:
        self.runs += 1
        if self.runs <= self.losses:
            raise self.error(f"loss {self.runs}")
        return f"won {lap}"


@pytest.mark.parametrize("losses", [0, 1, ATTEMPTS - 1])
async def test_a_retried_function_runs_until_it_succeeds(waits: list[float], losses: int) -> None:
    racer = RetriedRace(losses)
    assert await retrying()(racer.__call__)(3) == "won 3"
    assert (racer.runs, len(waits)) == (losses + 1, losses)


async def test_at_last_the_conflict_is_raised(waits: list[float]) -> None:
    racer = RetriedRace(99)
    with pytest.raises(Conflict, match=f"loss {ATTEMPTS}"):
        await retrying()(racer.__call__)()
    assert racer.runs == ATTEMPTS


async def test_the_fallback_gets_the_same_arguments(waits: list[float]) -> None:
    contended = retrying(attempts=3, otherwise=lambda lap: f"contended {lap}")(RetriedRace(99).__call__)
    assert await contended(5) == "contended 5"


async def test_another_error_is_not_run_again(waits: list[float]) -> None:
    racer = RetriedRace(1, KeyError)
    with pytest.raises(KeyError):
        await retrying()(racer.__call__)()
    assert racer.runs == 1


async def test_the_waits_grow_within_bounds_and_a_seed_repeats_them(waits: list[float]) -> None:
    for _ in range(2):
        with pytest.raises(Conflict):
            await retrying(Clock(chance=random.Random(7)))(RetriedRace(99).__call__)()
    first, second = waits[: ATTEMPTS - 1], waits[ATTEMPTS - 1 :]
    assert first == second
    assert all(SHORTEST_WAIT <= wait <= min(LONGEST_WAIT, 0.01 * 2**n) for n, wait in enumerate(first))
    assert len(set(first)) == len(first)


def a_job(number: int, due: float) -> AgentJob:
    return AgentJob(f"b{number}", 1, ("build", 1), "r1", 0.0, due)


@pytest.mark.parametrize(
    ("due", "sent"),
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
async def test_jobs_that_end_together_are_reported_in_batches(due: list[float], sent: list[float]) -> None:
    jobs, time = AgentJobs(), asyncio.get_running_loop().time
    times = {}

    async def wait_for(number: int) -> None:
        assert await jobs.end(jobs.begin(a_job(number, due[number]))) == "done"
        times[number] = time()

    async with asyncio.TaskGroup() as group:
        for number in range(len(due)):
            group.create_task(wait_for(number))
    assert [times[number] for number in range(len(due))] == pytest.approx(sent)


@in_virtual_time
async def test_only_the_last_waiter_of_a_job_gets_the_result() -> None:
    jobs = AgentJobs()
    job = jobs.begin(a_job(1, 1.0))
    first, second = jobs.end(job), jobs.end(job)
    assert await first == "handed over" and asyncio.get_running_loop().time() == 0.0
    assert await second == "done" and asyncio.get_running_loop().time() == 1.0


@in_virtual_time
async def test_an_abandoned_job_does_not_block_later_jobs() -> None:
    jobs = AgentJobs()
    ended, given_up, later = (jobs.end(jobs.begin(a_job(number, number / 10))) for number in (1, 2, 3))
    next(iter(jobs)).finish("destroyed")
    given_up.cancel()
    assert await later == "done" and asyncio.get_running_loop().time() == pytest.approx(0.3)
    assert await ended == "destroyed"


@in_virtual_time
async def test_a_lost_job_is_reported_to_late_waiters() -> None:
    jobs = AgentJobs()
    job = jobs.begin(a_job(1, 1.0))
    job.lost = True
    assert await jobs.end(job) == "lost"


class Hands:
    def __init__(self, now: float) -> None:
        self.now = now
        self.clock = Clock(now=lambda: self.now)


def test_report_sequences_follow_the_clock_and_never_decrease() -> None:
    hands = Hands(1000.0)
    numbers = ReportSequence(hands.clock)
    sent = [numbers.next()]
    for now in (1000.0, 1001.0, 5000.0, 1000.5, 1000.6):
        hands.now = now
        sent.append(numbers.next())
    assert sent == sorted(set(sent))
    assert sent[0] == 1_000_000_000


def test_report_sequences_continue_after_an_earlier_run() -> None:
    numbers = ReportSequence(Hands(1000.0).clock)
    numbers.follow(9_000_000_000_000)
    numbers.follow(5)
    assert [numbers.next(), numbers.next()] == [9_000_000_000_001, 9_000_000_000_002]


def test_report_sequences_stay_within_the_bound() -> None:
    numbers = ReportSequence(Hands(1e300).clock)
    assert numbers.next() == MAX_ORDINAL
