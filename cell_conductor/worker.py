"""Declares the messages, queries and timers of the conductor, and the messages that it publishes."""

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

import msgspec

from bus import topics
from bus.claims import ClaimAnswered, ClaimRequested, ReleaseAnswered, ReleaseRequested
from bus.clock import Clock
from bus.protocol import AskMany
from bus.sql.database import Database
from bus.topics import AGENT_REPORT
from bus.vocabulary import Message
from bus.worker import Every, On, Worker, answers, every, on_many, prune_period
from cell_conductor.builds import Builds
from cell_conductor.core.events import AttemptLimits
from cell_conductor.extension import ConductorPart
from cell_conductor.metrics import show_outcomes
from cell_conductor.removed_agents import RemovedAgents

A = TypeVar("A", ClaimRequested, ReleaseRequested)
R = TypeVar("R", bound=Message)

FAILOVER_SECONDS = 1.0  # seconds between checks for a fail-over of the database
LINGER = 0.02  # seconds to wait for further reports: a transaction for fifty costs as much as for one


def cell_conductor(
    cell: str,
    database: Database,
    claim_many: AskMany[ClaimRequested, ClaimAnswered],
    release_many: AskMany[ReleaseRequested, ReleaseAnswered],
    *,
    limits: AttemptLimits | None = None,
    clock: Clock | None = None,
    removed: RemovedAgents | None = None,
    parts: Sequence[ConductorPart] = (),
) -> Worker:
    """Return the worker of one cell's conductor; several replicas may share the cell's database. `removed`:
    the removed agents; the gateway, which relays orders to agents, uses the same object if it runs in this
    process. `parts`: those of features.
    """
    asks = _with_cell_set(cell, claim_many), _with_cell_set(cell, release_many)
    builds = Builds(database, *asks, parts=parts, limits=limits, clock=clock, removed=removed)
    show_outcomes(cell)
    worker = Worker(
        f"conductor.{cell}",
        consumes=_consumed(cell, builds),
        answers=[
            answers(topics.FIND_BUILDS, builds.find, cell=cell),
            answers(topics.FIND_INSTANCES, builds.find_instances, cell=cell),
            answers(topics.EDIT_AGENT, partial(builds.removed.edit, sharing=builds.sharing), cell=cell),
        ],
        asks=[topics.CELL_CLAIM, topics.CELL_RELEASE],
        timers=_timers(builds),
    )
    return worker.with_rows([*(part.rows(builds) for part in parts), builds.sharing.rows()])


def _consumed(cell: str, builds: Builds) -> list[On]:
    effects = builds.effects
    return [
        on_many(topics.BUILD_PLACED.at(cell=cell), builds.start_many, emits=effects),
        on_many(
            AGENT_REPORT.at(cell=cell),
            builds.report_many,
            emits=effects,
            concurrency=1,
            linger=LINGER,
            prefetch=2048,  # keeps free space for other reports while placement does not answer
            slow=lambda report: report.outcome not in ("built", "progress"),
        ),
        on_many(topics.BUILD_DELETE.at(cell=cell), builds.receive_many, emits=effects),
        on_many(topics.BUILD_END.at(cell=cell), builds.receive_many, emits=effects),
        on_many(topics.BUILD_RESHAPED.at(cell=cell), builds.reshape_many, emits=effects),
    ]


def _timers(builds: Builds) -> list[Every]:
    limits, repeated = builds.limits, builds.repeated
    return [
        every(limits.poll_every, builds.time_out, emits=repeated),
        every(limits.stalled_after / 2, builds.resume, emits=repeated, at_once=True),
        every(limits.poll_every, builds.end_orders_of_removed, emits=repeated, at_once=True),
        every(FAILOVER_SECONDS, builds.resume_after_failover, emits=repeated),
        every(prune_period(limits.keep), builds.prune),
    ]


def _with_cell_set(cell: str, ask_many: AskMany[A, R]) -> AskMany[A, R]:
    """Return a function that sets the field `cell` of queries, and then sends the queries by `ask_many`."""

    async def ask(questions: Sequence[A]) -> Sequence[R]:
        return await ask_many([msgspec.structs.replace(question, cell=cell) for question in questions])

    return ask
