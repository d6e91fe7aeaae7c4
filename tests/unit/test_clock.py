"""The replaceable clock, and retries of lost races."""

import asyncio
import random
import uuid

import pytest

from bus.clock import Clock, ReportSequence
from bus.leases import LeaseAnswered, NodeLent
from bus.sql.failures import ATTEMPTS, LONGEST_WAIT, SHORTEST_WAIT, Conflict, retrying
from bus.vocabulary import MAX_ORDINAL
from cell_conductor.core.ring import DRIFT, GRACE, LastRenewals
from compute_sim.guests import LONGEST_ROUND, ROUND, AgentJob, AgentJobs
from ironic_sync.agent.lease import LeasedNodes
from tests.support.ids import uid
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


N1, N2 = uid(1, "c"), uid(2, "c")
LEASE = 2.0


def seen(*looks: tuple[float, dict[str, int]], arrived: tuple[float, ...] = ()) -> LastRenewals:
    renewals = LastRenewals(silent_after=1.0)
    events = sorted(
        [*((at, beats) for at, beats in looks), *((at, None) for at in arrived)], key=lambda e: e[0]
    )
    for at, beats in events:
        if beats is None:
            renewals.renewed(at)
        else:
            renewals.note({agent: (1, beat) for agent, beat in beats.items()}, at)
    return renewals


def over_at(renewals: LastRenewals, agent: str, beat: int) -> float:
    return renewals.left(agent, (1, beat), LEASE, 0.0)


CERTAIN = LEASE * (1 + DRIFT) + GRACE


def test_a_lease_is_over_so_long_after_its_last_beat_was_seen_first() -> None:
    others = [(0.5 * n, {"a": min(n, 3), "b": n}) for n in range(8)]
    assert over_at(seen(*others), "a", 3) == pytest.approx(1.5 + CERTAIN)


def test_an_unknown_agent_has_a_full_lease_left() -> None:
    assert seen((5.0, {"b": 1})).left("a", (1, 1), LEASE, 6.0) == pytest.approx(CERTAIN)


def test_an_agent_with_a_new_heartbeat_has_a_full_lease_left() -> None:
    assert seen((5.0, {"a": 1})).left("a", (1, 2), LEASE, 9.0) == pytest.approx(CERTAIN)
    assert seen((5.0, {"a": 1})).left("a", (2, 1), LEASE, 9.0) == pytest.approx(CERTAIN)


def test_leases_do_not_expire_while_all_agents_are_silent() -> None:
    silence = [(float(n), {"a": 1, "b": 1}) for n in range(10)]
    assert over_at(seen(*silence), "a", 1) == pytest.approx(9.0 + CERTAIN)


def test_after_a_common_silence_every_lease_is_extended() -> None:
    silence = [(float(n), {"a": 1, "b": 1}) for n in range(10)]
    assert over_at(seen(*silence, (10.0, {"a": 1, "b": 2})), "a", 1) == pytest.approx(10.0 + CERTAIN)


def test_a_lease_query_counts_as_a_heartbeat() -> None:
    looks = [(float(n), {"a": 1}) for n in range(4)]
    assert over_at(seen(*looks, arrived=(0.5, 1.2, 1.9, 2.5, 3.2)), "a", 1) == pytest.approx(CERTAIN)


def test_an_agent_ends_its_lease_before_the_conductor_does() -> None:
    asked, stored_and_seen = 100.0, 100.0
    mine = LeasedNodes()
    mine.answered(asked, LeaseAnswered(epoch=1, seconds=LEASE, version=1))
    certain = seen((stored_and_seen, {"a": 1}), (stored_and_seen, {"a": 1}))
    at = stored_and_seen + certain.left("a", (1, 1), LEASE, stored_and_seen)
    slow = asked + (at - asked) * (1 - DRIFT / (1 + DRIFT))
    assert not mine.good(slow)


def lent(*answers: tuple[float, LeaseAnswered]) -> LeasedNodes:
    mine = LeasedNodes()
    for asked_at, answer in answers:
        mine.answered(asked_at, answer)
    return mine


def an_answer(
    *nodes: tuple[str, int], epoch: int = 1, more: bool = False, refused: str = ""
) -> LeaseAnswered:
    lent_nodes = tuple(NodeLent(root, epoch_) for root, epoch_ in nodes)
    return LeaseAnswered(epoch=epoch, seconds=LEASE, version=5, nodes=lent_nodes, more=more, refused=refused)


# answers (and when they were asked for); an order's node and epoch, and when it came; now; how it stands
STANDING = {
    "no answer yet": ([], (N1, 1, 0.0), 1.0, "not yet"),
    "ours": ([(0.0, an_answer((N1, 4)))], (N1, 4, 1.0), 1.5, "ours"),
    "ours, ordered by who knows no epochs": ([(0.0, an_answer((N1, 4)))], (N1, 0, 1.0), 1.5, "ours"),
    "the lease is over": ([(0.0, an_answer((N1, 4)))], (N1, 4, 1.0), 2.0, "not yet"),
    "an epoch that has passed": ([(0.0, an_answer((N1, 4)))], (N1, 3, 1.0), 1.5, "over"),
    "an epoch to come": ([(0.0, an_answer((N1, 4)))], (N1, 5, 1.0), 1.5, "not yet"),
    "... that never came": ([(1.2, an_answer((N1, 4)))], (N1, 5, 1.0), 1.5, "over"),
    "never ours, perhaps it will be": ([(0.0, an_answer())], (N1, 1, 1.0), 1.5, "not yet"),
    "not ours": ([(1.2, an_answer())], (N1, 1, 1.0), 1.5, "over"),
    "not ours, but there is more to come": ([(1.2, an_answer(more=True))], (N1, 1, 1.0), 1.5, "not yet"),
    "no longer ours": ([(0.0, an_answer((N1, 4))), (1.2, an_answer((N1, 0)))], (N1, 4, 1.0), 1.5, "over"),
    "others change": ([(0.0, an_answer((N1, 4))), (1.0, an_answer((N2, 0)))], (N1, 4, 1.0), 1.5, "ours"),
    "another lease": ([(0.0, an_answer((N1, 4))), (1.2, an_answer(epoch=2))], (N1, 4, 1.0), 1.5, "over"),
    "refused": ([(0.0, an_answer((N1, 4))), (1.0, an_answer(refused="no"))], (N1, 4, 0.5), 2.0, "not yet"),
    "an answer of a lease before": (
        [(0.0, an_answer((N1, 4), epoch=2)), (1.0, an_answer(epoch=1))], (N1, 4, 0.5), 2.0, "not yet"
    ),
}  # fmt: skip


@pytest.mark.parametrize("answers, order, now, stands", STANDING.values(), ids=STANDING.keys())
def test_the_state_of_an_order_under_a_lease(
    answers: list[tuple[float, LeaseAnswered]], order: tuple[str, int, float], now: float, stands: str
) -> None:
    assert lent(*answers).standing(*order, now) == stands


def test_the_lease_answer_names_lost_nodes() -> None:
    mine = lent((0.0, an_answer((N1, 4), (N2, 2))))
    assert mine.answered(0.5, an_answer((N1, 0))) == {N1}
    assert mine.answered(1.0, an_answer((N2, 3))) == {N2}
    assert mine.answered(1.5, an_answer((N2, 3))) == set()
    assert mine.answered(2.0, an_answer(epoch=2)) == {N2}


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
