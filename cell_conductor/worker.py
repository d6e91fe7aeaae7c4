"""Declares the messages, queries and timers of the conductor, and the messages that it publishes."""

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

import msgspec

from bus import topics
from bus.claims import ClaimAnswered, ClaimRequested, ReleaseAnswered, ReleaseRequested
from bus.clock import Clock
from bus.sql.database import Database
from bus.topics import AGENT_BUILD, AGENT_DESTROY, AGENT_MOVE, AGENT_MOVED, AGENT_REPORT, MOVE_HALF
from bus.worker import Every, On, Worker, answers, every, on_many, prune_period
from cell_conductor.adoption.handlers import Adoptions
from cell_conductor.applying import show_outcomes
from cell_conductor.build_claims import AskMany
from cell_conductor.builds import Builds
from cell_conductor.core.events import AttemptLimits
from cell_conductor.features import COURSES, STORES
from cell_conductor.moves.handlers import CellMoves
from cell_conductor.removed_agents import RemovedAgents
from cell_conductor.ring import CHECKS_PER_LEASE

A = TypeVar("A", ClaimRequested, ReleaseRequested)
R = TypeVar("R")

FAILOVER_SECONDS = 1.0  # seconds between checks for a fail-over of the database
LINGER = 0.02  # seconds to wait for further reports: a transaction for fifty costs as much as for one

# Topics that handlers of builds and moves, and timers, publish to. First: orders, and reports made for
# removed agents.
_ORDERS = [AGENT_BUILD, AGENT_DESTROY, AGENT_REPORT, AGENT_MOVED]
_VACATE = [topics.BUILD_VACATE, topics.BUILD_PREEMPTED]
# Every row whose messages are events of builds declares all of these: a build may be in a move, and repeats
# after any event what others wait for.
_EFFECTS = [
    *_ORDERS,
    *_VACATE,
    AGENT_MOVE,
    MOVE_HALF,
    topics.BUILD_ENDED,
    topics.BUILD_DELETED,
    topics.MOVE_ENDED,
    topics.MOVE_PROGRESS,
    topics.HOST_FAILED,
]
_ADOPTION = [*_EFFECTS, topics.BUILD_ADOPTED]
_REMINDERS = [
    topics.BUILD_VACATE,
    AGENT_BUILD,
    AGENT_DESTROY,
    AGENT_REPORT,
    AGENT_MOVE,
    AGENT_MOVED,
    MOVE_HALF,
]


def cell_conductor(
    cell: str,
    database: Database,
    claim_many: AskMany[ClaimRequested, ClaimAnswered],
    release_many: AskMany[ReleaseRequested, ReleaseAnswered],
    *,
    limits: AttemptLimits | None = None,
    clock: Clock | None = None,
    removed: RemovedAgents | None = None,
) -> Worker:
    """Return the worker of one cell's conductor; several replicas may share the cell's database. `removed`:
    the removed agents; the gateway, which relays orders to agents, uses the same object if it runs in this
    process.
    """
    asks = _with_cell_set(cell, claim_many), _with_cell_set(cell, release_many)
    builds = Builds(
        database, *asks, courses=COURSES, stores=STORES, limits=limits, clock=clock, removed=removed
    )
    moves, ring = CellMoves(builds), builds.ring
    show_outcomes(cell)
    return Worker(
        f"conductor.{cell}",
        consumes=_consumed(cell, builds, moves),
        answers=[
            answers(topics.FIND_BUILDS, builds.find, cell=cell),
            answers(topics.FIND_INSTANCES, builds.find_instances, cell=cell),
            answers(topics.FIND_MOVES, moves.find, cell=cell),
            answers(topics.LEASE, ring.lend, cell=cell),
            answers(topics.REPORT_NODES, ring.report_nodes, cell=cell),
            answers(topics.FIND_AGENTS, ring.find, cell=cell),
            answers(topics.EDIT_AGENT, partial(builds.removed.edit, ring=ring), cell=cell),
        ],
        asks=[topics.CELL_CLAIM, topics.CELL_RELEASE],
        timers=_timers(builds),
    )


def _consumed(cell: str, builds: Builds, moves: CellMoves) -> list[On]:
    return [
        on_many(topics.BUILD_PLACED.at(cell=cell), builds.start_many, emits=_EFFECTS),
        on_many(
            AGENT_REPORT.at(cell=cell),
            builds.report_many,
            emits=_EFFECTS,
            concurrency=1,
            linger=LINGER,
            prefetch=2048,  # keeps free space for other reports while placement does not answer
            slow=lambda report: report.outcome not in ("built", "progress"),
        ),
        on_many(topics.BUILD_DELETE.at(cell=cell), builds.receive_many, emits=_EFFECTS),
        on_many(topics.BUILD_VACATE.at(cell=cell), builds.receive_many, emits=_EFFECTS),
        on_many(topics.BUILD_RESHAPED.at(cell=cell), builds.reshape_many, emits=_EFFECTS),
        on_many(
            topics.BUILD_ADOPT.at(cell=cell), Adoptions(builds).adopt_many, emits=_ADOPTION, concurrency=1
        ),
        on_many(topics.MOVE_PLACED.at(cell=cell), moves.place_many, emits=_EFFECTS),
        on_many(topics.MOVE_HANDOVER.at(cell=cell), builds.receive_many, emits=_EFFECTS),
        on_many(AGENT_MOVED.at(cell=cell), builds.receive_many, emits=_EFFECTS, concurrency=1, linger=LINGER),
        on_many(topics.MOVE_STEER.at(cell=cell), builds.receive_many, emits=_EFFECTS),
    ]


def _timers(builds: Builds) -> list[Every]:
    limits, ring = builds.limits, builds.ring
    return [
        every(limits.poll_every, builds.time_out, emits=[AGENT_REPORT, AGENT_MOVED]),
        every(limits.stalled_after / 2, builds.resume, emits=_REMINDERS, at_once=True),
        every(limits.poll_every, builds.end_orders_of_removed, emits=_REMINDERS, at_once=True),
        every(FAILOVER_SECONDS, builds.resume_after_failover, emits=_REMINDERS),
        every(limits.agent_lease / CHECKS_PER_LEASE, ring.check_leases, at_once=True),
        every(limits.agent_lease / CHECKS_PER_LEASE, builds.move, emits=_REMINDERS),
        every(prune_period(limits.keep), builds.prune),
        every(3600.0, ring.prune),
    ]


def _with_cell_set(cell: str, ask_many: AskMany[A, R]) -> AskMany[A, R]:
    """Return a function that sets the field `cell` of queries, and then sends the queries by `ask_many`."""

    async def ask(questions: Sequence[A]) -> Sequence[R]:
        return await ask_many([msgspec.structs.replace(question, cell=cell) for question in questions])

    return ask
