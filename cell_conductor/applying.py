"""Applies events (messages, answers of placement, silence of agents) to builds, and stores the
changed builds before it returns the messages to publish; keeps recent builds in memory.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from bus.clock import Clock
from bus.errors import Retry
from bus.messages import AgentReported
from bus.sql.database import Database
from bus.sql.failures import Conflict, retrying
from bus.sql.statement import Transaction
from cell_conductor.core.build import Build, Effects
from cell_conductor.core.events import AttemptLimits, Event
from cell_conductor.core.step import Postponed, step
from cell_conductor.metrics import count_change
from cell_conductor.store import UNSETTLED_STATUSES, Applied, BuildStore, Changed, CourseStore

log = logging.getLogger(__name__)

AppliedEvents = dict[str, tuple[Build | None, Effects] | Retry]

CACHED = 4096  # builds in memory; a build takes about 10 kB


class EventApplier:
    """Applies events (messages, answers of placement, silence of agents) to the builds of a cell and stores
    the results; keeps unfinished builds in memory.
    """

    def __init__(
        self,
        database: Database,
        limits: AttemptLimits,
        clock: Clock,
        store: BuildStore,
        stores: Sequence[CourseStore],
    ) -> None:
        self.database = database
        self.courses = store.form.courses
        self._store = store
        self._stores = stores
        self._events_of_courses = tuple(type_ for course in self.courses for type_ in course.events)
        self.limits = limits
        self.clock = clock
        self.cached: dict[str, Build] = {}  # unfinished builds as stored, least recently stored first
        # Repeats a transaction that conflicts with another one; after too many attempts, the events are
        # postponed.
        self._read = retrying(clock, otherwise=_postponed)(self._read_and_apply)

    async def apply(self, events: Mapping[str, Event]) -> AppliedEvents:
        """Apply one event to each build and store the results; return the builds with the messages to
        publish.
        """
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
            if before is None or isinstance(event, self._events_of_courses):
                continue
            try:
                after, effects = step(before, event, now, self.limits, self.courses)
            except Postponed:  # decided again with the stored build
                continue
            if after is None or after is before:
                continue
            # A change of `placed` or `parts` concerns further rows: the build is then read from the database.
            if after.placed is before.placed and after.parts is before.parts:
                applied[id_] = before, after, effects
        if not applied:
            return {}
        try:
            changed = [(before, after) for before, after, _ in applied.values()]
            stored = await self._store.save(self.database, changed, now)
        except Conflict:  # handled as if another conductor had changed all of the builds
            stored = set()
        for id_ in applied.keys() - stored:
            self.cached.pop(id_, None)
        done: AppliedEvents = {}
        for id_, (before, after, effects) in applied.items():
            if id_ in stored:
                self.cache([_as_stored(after)])
                _log_abandoned_leftovers(before, after)
                self.count(Applied(events[id_], before, after, effects), now)
                done[id_] = after, effects
        return done

    async def _read_and_apply(self, events: Mapping[str, Event]) -> AppliedEvents:
        now = self.clock.now()
        results: AppliedEvents = {}
        applied: list[Applied] = []
        async with self.database.write() as tx:
            known = await self._store.load(tx, events)
            # Read in this transaction, because another event may just have changed the rows.
            for each in self._stores:
                events = {**events, **await each.read(tx, events, known)}
            for id_, event in events.items():
                before = known.get(id_)
                try:
                    after, effects = step(before, event, now, self.limits, self.courses)
                except Postponed as later:
                    results[id_] = Retry(later.seconds, str(later))
                    continue
                applied.append(Applied(event, before, after, effects))
                if after is not None or effects:
                    results[id_] = after, effects
            new = [each.after for each in applied if each.before is None and each.after is not None]
            changed = [
                (each.before, each.after)
                for each in applied
                if each.before is not None and each.after is not None and each.after is not each.before
            ]
            await self._save(tx, new, changed, now)
            for each in self._stores:
                for statement in each.rows(applied, now):
                    await statement(tx)
        self.cache([*new, *(_as_stored(after) for _, after in changed)])
        for done in applied:
            if done.before is not None and done.after is not None:
                _log_abandoned_leftovers(done.before, done.after)
                _log_contradiction(done.before, done.event)
            self.count(done, now)
        return results

    async def _save(
        self, tx: Transaction, new: Sequence[Build], changed: Sequence[Changed], now: float
    ) -> None:
        """Insert `new` builds and update `changed` builds. Raise Conflict if another conductor has stored one
        of them since they were loaded.
        """
        adding, preceding = self._store.adding(new, now)
        if new and len(await adding(tx, preceding)) != len(new):
            raise Conflict("a build that was unknown has just been placed")
        stored = await self._store.save_in(tx, changed, now) if changed else ()
        if missing := len(changed) - len(stored):
            raise Conflict(f"{missing} of {len(changed)} builds were changed meanwhile")

    def count(self, applied: Applied, now: float) -> None:
        """Count an applied event in the metrics, after its build was stored."""
        if applied.after is not None and applied.after is not applied.before:
            count_change(applied.before, applied.after, now)
        for each in self._stores:
            each.count(applied)


def _as_stored(changed: Build) -> Build:
    return replace(changed, version=changed.version + 1)


def _log_abandoned_leftovers(before: Build, after: Build) -> None:
    remaining = {left.attempt for left in after.leftovers}
    for left in before.leftovers:
        if not left.is_destroyed and left.attempt not in remaining:
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
