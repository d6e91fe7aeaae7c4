"""Applies events to the builds of one cell, stores the result, and sends claims and releases to placement.

A build is stored before any order is sent for it. Messages are returned, and published after all is stored.
After a crash in between, the event is redelivered and yields the same messages from the stored build.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from bus import topics
from bus.claims import ClaimAnswered, ClaimRequested, ReleaseAnswered, ReleaseRequested
from bus.clock import Clock
from bus.errors import Retry
from bus.messages import AgentReported, BuildPlaced, BuildReshaped
from bus.protocol import AskMany
from bus.queries import BuildsFound, FindBuilds, FindInstances, InstancesFound
from bus.sql.database import Database
from bus.sql.failures import retrying
from bus.sql.statement import Statement
from bus.topics import Topic
from bus.vocabulary import Message
from bus.worker import Outcome
from cell_conductor.applying import EventApplier
from cell_conductor.build_claims import BuildClaims
from cell_conductor.core.answers import to_be_placed
from cell_conductor.core.build import Build, Effects
from cell_conductor.core.events import AttemptLimits, Event, Stalled
from cell_conductor.core.step import overdue_report, step
from cell_conductor.extension import ConductorPart
from cell_conductor.instances import instances_page
from cell_conductor.metrics import count_ends
from cell_conductor.node_sharing import NodeSharing
from cell_conductor.removed_agents import RemovedAgents, prune_assumed
from cell_conductor.store import Applied, BuildStore

log = logging.getLogger(__name__)


ROUNDS = 6  # most requests to placement for one event: a refused claim, a release, and retries
AWAITED_SECONDS = 60.0  # seconds for which a reshape waits for the message about its build
PAGE = 1000
PRUNE_PAGE = 5000

# Topics of messages of builds, without those of features. First: orders, and reports that the conductor sends
# to itself or makes for removed agents.
_REPEATED: tuple[Topic[Any], ...] = (topics.AGENT_BUILD, topics.AGENT_DESTROY, topics.AGENT_REPORT)
_EFFECTS = (*_REPEATED, topics.BUILD_ENDED, topics.BUILD_CONFLICT, topics.BUILD_DELETED, topics.HOST_FAILED)


class Builds:
    """Applies messages and placement's answers to the builds of one cell, and stores the builds."""

    def __init__(
        self,
        database: Database,
        claim_many: AskMany[ClaimRequested, ClaimAnswered],
        release_many: AskMany[ReleaseRequested, ReleaseAnswered],
        *,
        parts: Sequence[ConductorPart],
        limits: AttemptLimits | None = None,
        clock: Clock | None = None,
        removed: RemovedAgents | None = None,
    ) -> None:
        self.database = database
        self.courses = tuple(course for part in parts for course in part.courses)
        self.store = BuildStore(self.courses)
        self.placement = BuildClaims(claim_many, release_many)
        self.limits = limits or AttemptLimits()
        self.clock = clock or Clock()
        ended_orders = [each for part in parts for each in part.ended_orders]
        self.removed = removed or RemovedAgents(database, self.clock, ended_orders)
        self._prunes = (self.store.prune, *(prune for part in parts for prune in part.prunes), prune_assumed)
        stores = [each for part in parts for each in part.stores]
        self._applier = EventApplier(database, self.limits, self.clock, self.store, stores)
        self.effects: Sequence[Topic[Any]] = (*_EFFECTS, *(topic for part in parts for topic in part.effects))
        # topics of messages that timers repeat
        self.repeated: Sequence[Topic[Any]] = (*_REPEATED, *(each for part in parts for each in part.repeats))
        self._repeated: tuple[type[Message], ...] = tuple(topic.message for topic in self.repeated)
        self._resumed = False
        self._failed_over = False
        database.on_new_history(self._forget)
        # `retrying` repeats a transaction that conflicts with another one. After too many attempts, builds
        # count as stored before, and no silent builds are returned.
        self._add = retrying(self.clock, otherwise=lambda made, now: set[str]())(self._add_once)
        self._silent = retrying(self.clock, otherwise=lambda *_: [])(self._stalled_builds)
        sharing = [part.sharing for part in parts if part.sharing is not None]
        self.sharing = sharing[0](self) if sharing else NodeSharing()

    async def start_many(self, placed: Sequence[BuildPlaced]) -> Sequence[Outcome]:
        """Store the builds that the scheduler placed, and return for each new build its build order to an
        agent; for a build that is stored already return its last messages again.
        """
        now = self.clock.now()
        first = {message.build: position for position, message in reversed(list(enumerate(placed)))}
        made: dict[int, tuple[Build, Effects]] = {}
        for position in first.values():
            build, effects = step(None, placed[position], now, self.limits, self.courses)
            assert build is not None  # a BuildPlaced without a known build always makes one
            made[position] = build, effects
        added = await self._add([build for build, _ in made.values()], now)
        for position, (build, effects) in made.items():
            if build.id in added:
                self._applier.count(Applied(placed[position], None, build, effects), now)
        new = {position: effects for position, (build, effects) in made.items() if build.id in added}
        known = [(message.build, message) for at, message in enumerate(placed) if at not in new]
        fates = iter(await self.handle(known))
        return await self.addressed([new[at] if at in new else next(fates) for at in range(len(placed))])

    async def report_many(self, reports: Sequence[AgentReported]) -> Sequence[Outcome]:
        """Apply agents' reports to their builds. If the reporting agent may no longer act on the node, ignore
        the report, and return the orders of the build again, addressed to the node's present agent.
        """
        outdated = await self.sharing.outdated(reports)
        for report in (reports[position] for position in sorted(outdated)):
            log.warning(
                "build %s: agent %s reported %s for %s, which has had another agent since epoch %d",
                *(report.build, report.agent, report.outcome, report.host, report.epoch),
            )
        events: list[tuple[str, Event]] = [
            (report.build, Stalled() if position in outdated else report)
            for position, report in enumerate(reports)
        ]
        return await self.apply(events)

    async def load(self, ids: Collection[str]) -> dict[str, Build]:
        """Return the cell's records of builds by id."""
        async with self.database.read() as tx:
            return await self.store.load(tx, ids)

    async def on_shared_nodes(self, builds: Collection[Build]) -> set[str]:
        """Return the ids of those placed builds whose host is a node that agents share."""
        roots = {build.id: build.host.root for build in builds if build.placed is not None}
        shared = await self.sharing.shared({*roots.values()})
        return {id_ for id_, root in roots.items() if root in shared}

    async def receive_many(self, messages: Sequence[Any]) -> Sequence[Outcome]:
        """Apply messages about builds, each with the field `build`."""
        return await self.apply([(message.build, message) for message in messages])

    async def apply(self, events: Sequence[tuple[str, Event]]) -> Sequence[Outcome]:
        """Apply events to builds; return messages, with each order addressed to the node's present agent."""
        return await self.addressed(await self.handle(events))

    async def addressed(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Return the outcomes with orders to removed agents and to shared nodes redirected or left out; count
        the ends.
        """
        lists = [[*outcome] if isinstance(outcome, list | tuple) else [] for outcome in outcomes]
        count_ends(message for listed in lists for message in listed)
        flat = [message for listed in lists for message in listed]
        addressed = iter(await self.removed.addressed(flat, self.sharing))
        sent = [[message for _ in listed if (message := next(addressed)) is not None] for listed in lists]
        pairs = zip(outcomes, sent, strict=True)
        return [messages if isinstance(outcome, list | tuple) else outcome for outcome, messages in pairs]

    async def reshape_many(self, reshapes: Sequence[BuildReshaped]) -> Sequence[Outcome]:
        """Record the new allocations of builds after a reshape. Return Retry for a recent reshape if this
        cell does not know the build yet, or not yet the build's claim on the reshaped host: the scheduler's
        message about it may still arrive.
        """
        known = await self.load({reshaped.build for reshaped in reshapes})
        young = self.clock.now() - AWAITED_SECONDS
        outcomes = await self.apply([(reshaped.build, reshaped) for reshaped in reshapes])
        return [
            Retry(1.0, "it has not been placed here yet")
            if reshaped.at > young and to_be_placed(known.get(reshaped.build), reshaped)
            else done
            for reshaped, done in zip(reshapes, outcomes, strict=True)
        ]

    async def find(self, question: FindBuilds) -> BuildsFound:
        """Answer a query for the states of builds."""
        known = await self.load(question.builds)
        found = (self.store.form.stands(build) for build in known.values())
        return BuildsFound(builds=tuple(build for build in found if build is not None))

    async def find_instances(self, question: FindInstances) -> InstancesFound:
        """Answer a query for a page of instances."""
        async with self.database.read() as tx:
            return await instances_page(tx, question, self.store.form)

    async def time_out(self) -> Sequence[Any]:
        """Return a report `overdue` for each build whose agent has not done what was ordered within the time
        limit.
        """
        async with self.database.read() as tx:
            late = await self.store.overdue(tx, self.clock.now(), PAGE)
        return [overdue_report(build, self.courses) for build in late]

    async def resume(self) -> Sequence[Any]:
        """Return the unanswered orders of unfinished builds, to repeat them: at the first call for all
        unfinished builds, later only for builds that have not changed for `stalled_after` seconds.

        Also return the orders to destroy guests left behind by ended builds that have not changed for
        `destroy_again_after` seconds.
        """
        now = self.clock.now()
        since = now - self.limits.stalled_after if self._resumed else now
        messages = await self._repeat(since, now - self.limits.destroy_again_after)
        self._resumed = True
        return messages

    async def end_orders_of_removed(self) -> Sequence[Any]:
        """Return the reports that end all orders for removed agents; [] if no agent was removed since the
        last call that succeeded.
        """
        now = self.clock.now()
        await self.removed.refresh()
        if not (agents := self.removed.unended):
            return []
        messages = await self._repeat(now, now, None)
        self.removed.unended -= agents
        return self.removed.reports(messages)

    async def _repeat(self, since: float, left: float, roots: Collection[str] | None = ()) -> list[Any]:
        now = self.clock.now()
        unfinished = [
            build for each in self.store.unfinished for build in await self._each_silent(each, since, now)
        ]
        with_leftovers = await self._each_silent(self.store.with_leftovers, left, now)
        if count := len(unfinished) + len(with_leftovers):
            log.info("repeated the messages that %d builds wait for", count)
        return [
            *await self._repeated_orders(unfinished, roots),
            *await self._repeated_orders(with_leftovers, None),
        ]

    async def _each_silent(self, silent: Statement, since: float, now: float) -> list[Build]:
        """Return all builds that the statement `silent` selects and that have not changed since `since`."""
        builds: list[Build] = []
        page, after = PAGE, ""
        while page == PAGE:
            waiting = await self._silent(silent, since, now, after)
            builds += waiting
            page, after = len(waiting), max((build.id for build in waiting), default="")
        return builds

    def _forget(self) -> None:
        """Clear the cache of builds: a fail-over of the database may have lost their last changes."""
        self._applier.cached.clear()
        self._failed_over = True

    async def resume_after_failover(self) -> Sequence[Any]:
        """After a fail-over of the database, return the orders of all unfinished builds again.

        The fail-over may have lost applied reports. Agents report again, so no build times out.
        """
        if not self._failed_over:
            return []
        self._resumed = False
        orders = await self.resume()
        self._failed_over = False
        return orders

    async def remind(self, roots: Collection[str]) -> Sequence[Any]:
        """Return again the unanswered orders about guests on the given root providers."""
        async with self.database.read() as tx:
            builds = await self.store.on_roots(tx, roots)
        return await self._repeated_orders(builds, roots)

    async def _repeated_orders(
        self, builds: Iterable[Build], roots: Collection[str] | None = ()
    ) -> list[Any]:
        """Return again the unanswered orders of the given builds, and orders to destroy their guests left
        behind on the hosts `roots`; None: on all hosts.
        """
        now = self.clock.now()
        effects: list[Message] = []
        for build in builds:
            effects += step(build, Stalled(roots), now, self.limits, self.courses)[1]
        addressed = await self.removed.addressed(effects, self.sharing)
        return [message for message in addressed if isinstance(message, self._repeated)]

    async def prune(self) -> None:
        """Delete records of builds, and of features, that ended long ago and hold no resources."""
        # A pruned build that is placed again has version 0, unlike its cached record.
        self._applier.cached.clear()
        before = self.clock.now() - self.limits.keep
        for prune in self._prunes:
            await self.database.delete_old(prune, before, PRUNE_PAGE)

    async def handle(self, events: Sequence[tuple[str, Event]]) -> list[Outcome]:
        """Apply events to builds, several events of one build in sequence; return for each event the messages
        to publish, or a request to deliver the event again later.
        """
        outcomes: list[Outcome] = [None] * len(events)
        waiting = list(enumerate(events))
        while waiting:
            wave: dict[str, tuple[int, Event]] = {}
            later = []
            for position, (id_, event) in waiting:
                if id_ in wave:
                    later.append((position, (id_, event)))
                else:
                    wave[id_] = position, event
            fates = await self._advance({id_: event for id_, (_, event) in wave.items()})
            for id_, (position, _) in wave.items():
                outcomes[position] = fates[id_]
            waiting = later
        return outcomes

    async def _advance(self, events: Mapping[str, Event]) -> Mapping[str, list[Message] | Retry]:
        emitted: dict[str, list[Message]] = {id_: [] for id_ in events}
        fates: dict[str, list[Message] | Retry] = dict(emitted)
        for _ in range(ROUNDS):
            swaps: list[tuple[Build, ClaimRequested]] = []
            releases: list[tuple[Build, ReleaseRequested]] = []
            for id_, outcome in (await self._applier.apply(events)).items():
                if isinstance(outcome, Retry):
                    fates[id_] = outcome
                    continue
                build, effects = outcome
                for effect in effects:
                    if build is not None and isinstance(effect, ClaimRequested):
                        swaps.append((build, effect))
                    elif build is not None and isinstance(effect, ReleaseRequested):
                        releases.append((build, effect))
                    else:
                        emitted[id_].append(effect)
            asked = [build.id for build, _ in (*swaps, *releases)]
            events = await self.placement.swap(swaps) | await self.placement.release(releases)
            for id_ in asked:
                if id_ not in events:
                    fates[id_] = Retry(1.0, "placement is away")
            if not events:
                return fates
        return fates | {id_: Retry(0.5, "placement is contended") for id_ in events}

    async def _add_once(self, made: Sequence[Build], now: float) -> set[str]:
        added = {row["id"] for row in await self.database.write_single(*self.store.adding(made, now))}
        self._applier.cache(build for build in made if build.id in added)
        return added

    async def _stalled_builds(self, silent: Statement, since: float, now: float, after: str) -> list[Build]:
        """Return a page of the builds that `silent` selects and that are unchanged since `since`, sorted by
        id, after the id `after`. Store `now` as their time of change, so that their orders are not repeated
        again immediately.
        """
        async with self.database.write() as tx:
            return await self.store.silent(tx, silent, since, now, after, PAGE)
