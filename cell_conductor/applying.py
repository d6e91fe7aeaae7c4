"""Applies events (messages, answers of placement, silence of agents) to builds, and stores the changed builds
before it returns the messages to publish; keeps recent builds in memory.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace
from prometheus_client import Counter, Histogram

from bus.clock import Clock
from bus.errors import Retry
from bus.messages import AgentReported, BuildEnded
from bus.moves import MoveEnded, MovePlaced
from bus.sql.database import Database
from bus.sql.failures import Conflict, retrying
from bus.sql.transaction import Transaction
from bus.vocabulary import Message
from cell_conductor import store
from cell_conductor.core.build import ABORTED, DELETED_BEFORE, DELETED_WHILE_BUILDING, Build, Effects
from cell_conductor.core.events import AttemptLimits, Event, MoveImpossible
from cell_conductor.core.step import step
from cell_conductor.moves import store as move_store
from cell_conductor.moves.core.move import BuildMove, end_messages, never_begun
from cell_conductor.moves.core.placed_move import postpone_reason
from cell_conductor.store import UNSETTLED_STATUSES

log = logging.getLogger(__name__)

AppliedEvents = dict[str, tuple[Build | None, Effects] | Retry]

CACHED = 4096  # builds in memory; a build takes about 10 kB
MOVE_LATER = 5.0  # seconds before a retry if the build is in another move


class EventApplier:
    """Applies events (messages, answers of placement, silence of agents) to the builds of a cell and stores
    the results; keeps unfinished builds in memory.
    """

    def __init__(self, database: Database, limits: AttemptLimits, clock: Clock) -> None:
        self.database = database
        self.limits = limits
        self.clock = clock
        self.cached: dict[str, Build] = {}  # unfinished builds as stored, least recently stored first
        # Repeats a transaction that conflicts with another one; after too many attempts, the events are
        # postponed.
        self._read = retrying(clock, otherwise=_postponed)(self._read_and_apply)

    async def apply(self, events: Mapping[str, Event]) -> AppliedEvents:
        applied = await self._apply_to_cached(events)
        rest = {id_: event for id_, event in events.items() if id_ not in applied}
        return applied | await self._read(rest) if rest else applied

    def cache(self, builds: Iterable[Build]) -> None:
        """Cache each given build that waits for an agent or for placement, and remove all other given builds
        from the cache.
        """
        for build in builds:
            self.cached.pop(build.id, None)
            if build.status in UNSETTLED_STATUSES:
                self.cached[build.id] = build
                if len(self.cached) > CACHED:
                    del self.cached[next(iter(self.cached))]

    async def _apply_to_cached(self, events: Mapping[str, Event]) -> AppliedEvents:
        # Another replica may have changed a cached build, so a result counts only if its build was stored
        # over the cached version.
        now = self.clock.now()
        applied: dict[str, tuple[Build, Build, Effects]] = {}
        for id_, event in events.items():
            before = self.cached.get(id_)
            if before is None or _placed_by(event) is not None:
                continue
            after, effects = step(before, event, now, self.limits)
            if after is None or after is before:
                continue
            # A change of `placed` or `move` concerns further rows: the build is then read from the database.
            if after.placed is before.placed and after.move is before.move:
                applied[id_] = before, after, effects
        if not applied:
            return {}
        try:
            changed = [(before, after) for before, after, _ in applied.values()]
            stored = await store.save(self.database, changed, now)
        except Conflict:  # handled as if another conductor had changed all of the builds
            stored = set()
        for id_ in applied.keys() - stored:
            self.cached.pop(id_, None)
        done: AppliedEvents = {}
        for id_, (before, after, effects) in applied.items():
            if id_ in stored:
                self.cache([_as_stored(after)])
                _log_abandoned_leftovers(before, after)
                count_change(before, after, now)
                done[id_] = after, effects
        return done

    async def _read_and_apply(self, events: Mapping[str, Event]) -> AppliedEvents:
        now = self.clock.now()
        applied: AppliedEvents = {}
        new: list[Build] = []
        changed: list[store.Changed] = []
        moved: list[tuple[BuildMove, MovePlaced]] = []
        async with self.database.write() as tx:
            known = await store.load(tx, events)
            moves_here = {build.move.id for build in known.values() if build.move is not None}
            begun = {move.move for event in events.values() if (move := _placed_by(event)) is not None}
            ended = await move_store.ended(tx, begun - moves_here)
            for id_, event in events.items():
                before = known.get(id_)
                placed = _placed_by(event)
                # Checked in this transaction, because another event may just have ended the move.
                if placed is not None and placed.move in ended:
                    applied[id_] = before, end_messages(ended[placed.move])
                    continue
                if placed is not None and (why := postpone_reason(before, placed)):
                    applied[id_] = Retry(MOVE_LATER, why)
                    continue
                after, effects = step(before, event, now, self.limits)
                moved += _moves_of(before, after, effects, placed, now)
                if after is None:
                    if effects:
                        applied[id_] = None, effects
                    continue
                if before is not None:
                    _log_abandoned_leftovers(before, after)
                    _log_contradiction(before, event)
                applied[id_] = after, effects
                if before is None:
                    new.append(after)
                elif after is not before:
                    changed.append((before, after))
            await _store(tx, new, changed, now)
            await move_store.save(tx, moved)
        self.cache([*new, *(_as_stored(after) for _, after in changed)])
        for before, after in (*((None, build) for build in new), *changed):
            count_change(before, after, now)
        return applied


async def _store(tx: Transaction, new: Sequence[Build], changed: Sequence[store.Changed], now: float) -> None:
    """Insert `new` builds and update `changed` builds. Raise Conflict if another conductor has stored one of
    them since they were loaded.
    """
    adding, preceding = store.adding(new, now)
    if new and len(await adding(tx, preceding)) != len(new):
        raise Conflict("a build that was unknown has just been placed")
    if changed and (missing := len(changed) - len(await store.save_in(tx, changed, now))):
        raise Conflict(f"{missing} of {len(changed)} builds were changed meanwhile")


def _as_stored(changed: Build) -> Build:
    return replace(changed, version=changed.version + 1)


def _moves_of(
    before: Build | None, after: Build | None, effects: Effects, placed: MovePlaced | None, now: float
) -> list[tuple[BuildMove, MovePlaced]]:
    """Return the move to store after an event that began, changed or refused a move, with the scheduler's
    order of this move; [] if the event did not affect a move. `placed`: the event, if it is an order of a
    move.
    """
    move = after.move if after is not None else None
    if move is not None and (before is None or before.move is not move):
        return [(move, placed if placed is not None and placed.move == move.id else move.placed)]
    if placed is None or after is None:
        return []
    ends = [effect for effect in effects if isinstance(effect, MoveEnded) and effect.move == placed.move]
    if not ends or (move is not None and move.id == placed.move):
        return []
    return [(never_begun(placed, ends[0].end, ends[0].reason, now), placed)]


def _log_abandoned_leftovers(before: Build, after: Build) -> None:
    remaining = {left.attempt for left in after.leftovers}
    for left in before.leftovers:
        if not left.gone and left.attempt not in remaining:
            host = before.hosts[left.at]
            log.warning(
                "build %s: agent %s did not report, and the allocations held for its attempt %d on %s are"
                " released",
                *(before.id, host.agent, left.attempt, host.host),
            )


def _log_contradiction(build: Build, event: Event) -> None:
    """Log a warning if an agent reports that the guest of an active build failed, for example because the
    instance was adopted wrongly. A report of an earlier attempt, which may be repeated, is no contradiction.
    """
    if not isinstance(event, AgentReported) or event.attempt != build.attempt:
        return
    if event.outcome == "failed" and build.status == "active":
        log.warning(
            "build %s is active, but agent %s reports its attempt %d on %s as failed: %s",
            *(build.id, event.agent, event.attempt, event.host, event.cause),
        )


def _postponed(events: Mapping[str, Event]) -> AppliedEvents:
    return dict.fromkeys(events, Retry(0.5, "other processes are changing the build"))


BUILDS_ENDED = Counter(
    "berth_builds_ended", "ends of builds that a cell published, repetitions included", ["cell", "status"]
)
MOVES_ENDED = Counter(
    "berth_moves_ended",
    "ends of moves that a cell published, repetitions included, by the plan that requested them",
    ["cell", "kind", "end", "plan"],
)

PREEMPTIONS = Counter(
    "berth_preemptions",
    "builds that preempt instances: started, finished (the victims have left) or undone (deleted before)",
    ["cell", "stage"],
)


BUILD_OUTCOMES = Counter(
    "berth_build_outcomes",
    "ends of builds, each once: active, failed (by berth or a host), impossible (as the agent reported) or"
    " deleted (before the end)",
    ["cell", "outcome"],
)
BUILD_SECONDS = Histogram(
    "berth_build_seconds",
    "from the publication of a request to its active instance, without requests that waited for capacity",
    ["cell"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600),
)


def show_outcomes(cell: str) -> None:
    """Create the metrics of a cell's build outcomes with the value 0, because Prometheus computes no rate if
    the first value is above 0.
    """
    for outcome in ("active", "failed", "impossible", "deleted"):
        BUILD_OUTCOMES.labels(cell, outcome)
    BUILD_SECONDS.labels(cell)


def count_change(before: Build | None, after: Build, now: float) -> None:
    """Count the end or preemption of a build in the metrics, after its new state `after` was stored."""
    count_preemption(before, after)
    if before is None or before.end or not after.end:
        return
    BUILD_OUTCOMES.labels(after.cell, outcome_of(after)).inc()
    if after.end == "active" and after.as_placed.requested and not after.as_placed.since:
        BUILD_SECONDS.labels(after.cell).observe(max(now - after.as_placed.requested, 0.0))


def outcome_of(build: Build) -> str:
    """Return how a build ended, as a metric's label: active, deleted (by a client), impossible or failed."""
    if build.end == "active":
        return "active"
    if build.doom in (DELETED_BEFORE, DELETED_WHILE_BUILDING):
        return "deleted"
    return "impossible" if build.doom.startswith(ABORTED) else "failed"


def count_preemption(before: Build | None, after: Build) -> None:
    awaited = before.awaits if before is not None else ()
    if after.awaits and not awaited:
        PREEMPTIONS.labels(after.cell, "started").inc()
    elif awaited and not after.awaits:
        PREEMPTIONS.labels(after.cell, "undone" if after.doom else "finished").inc()


def count_ends(messages: Iterable[Message]) -> None:
    for message in messages:
        if isinstance(message, BuildEnded):
            BUILDS_ENDED.labels(message.cell, message.status).inc()
        elif isinstance(message, MoveEnded):
            MOVES_ENDED.labels(message.cell, message.kind, message.end, message.plan or "none").inc()


def _placed_by(event: Event) -> MovePlaced | None:
    if isinstance(event, MoveImpossible):
        return event.placed
    return event if isinstance(event, MovePlaced) else None
