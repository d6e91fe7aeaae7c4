"""The conductor's table: messages it consumes, publishes and answers, and its questions to placement."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from bus.claims import ClaimAnswered, ClaimRequested, ReleaseAnswered, ReleaseRequested
from bus.clock import Clock
from bus.sql.database import Database
from bus.topics import (
    AGENT_BUILD,
    AGENT_DESTROY,
    AGENT_MOVE,
    AGENT_MOVED,
    AGENT_REPORT,
    BUILD_ADOPT,
    BUILD_ADOPTED,
    BUILD_DELETE,
    BUILD_DELETED,
    BUILD_ENDED,
    BUILD_PLACED,
    BUILD_RESHAPED,
    CELL_CLAIM,
    CELL_RELEASE,
    EDIT_AGENT,
    FIND_AGENTS,
    FIND_BUILDS,
    FIND_INSTANCES,
    FIND_MOVES,
    HOST_FAILED,
    LEASE,
    MOVE_ENDED,
    MOVE_HALF,
    MOVE_HANDOVER,
    MOVE_PLACED,
    MOVE_STEER,
    MOVE_TOLD,
    TELL_NODES,
)
from bus.worker import Worker, answers, every, on_many
from cell_conductor.adopting import Adoptions
from cell_conductor.audit import Listing
from cell_conductor.builds import AskMany, Builds
from cell_conductor.core.events import AttemptLimits
from cell_conductor.moves import CellMoves
from cell_conductor.ring import CHECKS_PER_LEASE, LEASE_SECONDS, Ring
from cell_conductor.ring_commands import RingCommands

A = TypeVar("A", ClaimRequested, ReleaseRequested)
R = TypeVar("R")

LINGER = 0.02  # one report costs a transaction as large as fifty do


def cell_conductor(
    cell: str,
    database: Database,
    claim_many: AskMany[ClaimRequested, ClaimAnswered],
    release_many: AskMany[ReleaseRequested, ReleaseAnswered],
    *,
    max_attempts: int = 3,
    build_timeout: float = 1800.0,
    delete_timeout: float = 600.0,
    cleanup_timeout: float = 86400.0,
    look_every: float = 5.0,
    stalled_after: float = 60.0,
    agent_lease: float = LEASE_SECONDS,
    clock: Clock | None = None,
) -> Worker:
    """Return the conductor of one cell; any number of replicas may share the cell's database."""
    ring = Ring(database, clock=clock, lease=agent_lease)
    by_hand = RingCommands(ring)
    builds = Builds(
        database,
        _as_this(cell, claim_many),
        _as_this(cell, release_many),
        limits=AttemptLimits(max_attempts, build_timeout, delete_timeout, cleanup_timeout),
        clock=clock,
        ring=ring,
        stalled_after=stalled_after,
    )
    moves = CellMoves(builds)
    says = [AGENT_BUILD, AGENT_DESTROY, BUILD_ENDED, BUILD_DELETED, MOVE_ENDED, MOVE_HALF]
    moving = [*says, AGENT_MOVE, MOVE_TOLD, HOST_FAILED]
    reminders = [AGENT_BUILD, AGENT_DESTROY, AGENT_REPORT, AGENT_MOVE, AGENT_MOVED, MOVE_HALF]
    return Worker(
        f"conductor.{cell}",
        consumes=[
            on_many(BUILD_PLACED.at(cell=cell), builds.start_many, emits=says),
            on_many(
                AGENT_REPORT.at(cell=cell), builds.report_many, emits=moving, concurrency=1, linger=LINGER
            ),
            on_many(BUILD_DELETE.at(cell=cell), builds.delete_many, emits=says),
            on_many(BUILD_RESHAPED.at(cell=cell), builds.reshape_many),
            on_many(
                BUILD_ADOPT.at(cell=cell),
                Adoptions(builds).adopt_many,
                emits=[AGENT_BUILD, BUILD_ADOPTED],
                concurrency=1,
            ),
            on_many(MOVE_PLACED.at(cell=cell), moves.place_many, emits=moving),
            on_many(MOVE_HANDOVER.at(cell=cell), moves.hand_over_many, emits=moving),
            on_many(AGENT_MOVED.at(cell=cell), moves.move_many, emits=moving, concurrency=1, linger=LINGER),
            on_many(MOVE_STEER.at(cell=cell), moves.steer_many, emits=moving),
        ],
        answers=[
            answers(FIND_BUILDS, builds.find, cell=cell),
            answers(FIND_INSTANCES, Listing(database).find, cell=cell),
            answers(FIND_MOVES, moves.find, cell=cell),
            answers(LEASE, ring.lend, cell=cell),
            answers(TELL_NODES, ring.report_nodes, cell=cell),
            answers(FIND_AGENTS, by_hand.find, cell=cell),
            answers(EDIT_AGENT, by_hand.edit, cell=cell),
        ],
        asks=[CELL_CLAIM, CELL_RELEASE],
        timers=[
            every(look_every, builds.time_out, emits=[AGENT_REPORT]),
            every(look_every, moves.time_out, emits=[AGENT_MOVED]),
            every(stalled_after / 2, builds.resume, emits=reminders, at_once=True),
            every(agent_lease / CHECKS_PER_LEASE, ring.check_leases, at_once=True),
            every(agent_lease / CHECKS_PER_LEASE, builds.move, emits=reminders),
            every(3600.0, builds.prune),
            every(3600.0, ring.prune),
        ],
    )


def _as_this(cell: str, ask_many: AskMany[A, R]) -> AskMany[A, R]:
    """Add this cell's name to questions; placement checks it against their key."""

    async def ask(questions: Sequence[A]) -> Sequence[R]:
        return await ask_many([msgspec.structs.replace(question, cell=cell) for question in questions])

    return ask
