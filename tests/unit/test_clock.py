"""The replaceable clock, and retries of lost races."""

import random
import uuid

import pytest

from bus.clock import Clock, ReportSequence
from bus.sql.failures import Conflict, retrying
from bus.vocabulary import MAX_ORDINAL
from compute_sim.guests import AgentJob, AgentJobs
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


async def test_another_error_is_not_run_again(waits: list[float]) -> None:
    racer = RetriedRace(1, KeyError)
    with pytest.raises(KeyError):
        await retrying()(racer.__call__)()
    assert racer.runs == 1


def a_job(number: int, due: float) -> AgentJob:
    return AgentJob(f"b{number}", 1, ("build", 1), "r1", 0.0, due)


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
