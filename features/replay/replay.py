"""Replays a past period: its changes in order, and each recorded decision on the hosts of its time."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from berth.kit import InstantCloud, InstantPlacement, Settings, SteppedTime, choice_policy, placement_queries
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.messages import BuildRequested
from bus.replication import ConsumerChange
from features.history.messages import LoggedCommit
from features.history.past import PastCloud
from features.history.reading import PastTime, StateHistory, follow
from features.policies.decisions import RecordedDecision, RepeatedDecision
from features.policies.messages import TrialPolicy, TrialResult, TryPolicy
from features.policies.policy_changes import ChangedPolicy
from features.policies.policy_tests import PolicyTest, from_record, on_hosts
from features.policies.trials import PolicyTrials
from features.what_if.questions import WhatIfs
from placement_worker.extension import Index, unpacked
from scheduler_worker.extension import PlacementQueries


@dataclass
class ReplayResult:
    """The result of a replay: the repeated decisions, and the state before and after the period."""

    decisions: list[RepeatedDecision] = field(default_factory=list)
    first: int = 0  # number of the last change before the period
    last: int = 0
    placed: int = 0  # claims of new consumers; then changed claims, and deleted consumers
    changed: int = 0
    deleted: int = 0
    used: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # class → at the start, at the end
    is_proven: bool = False  # the end was compared with a snapshot stored during the period

    @property
    def test(self) -> PolicyTest:
        return PolicyTest(self.decisions)


class _PastPlacement(InstantPlacement):
    """The index of a past state; queries are answered by the present placement."""

    def __init__(self, index: Index, bus: Bus) -> None:
        super().__init__(index)
        self._bus = bus

    def queries(self) -> PlacementQueries:
        return placement_queries(self._bus)


class PastScheduler:
    """Chooses hosts for requests on the hosts of a past state of placement. All agents count as up; their
    reports, such as load and images, are not recorded. Server groups and reservations are used in their
    present state.
    """

    def __init__(self, bus: Bus, settings: Settings, cloud: PastCloud) -> None:
        self._index = cloud.index()
        self._instances = Counter(root for each in cloud.consumers.values() for root in self._roots_of(each))
        placement, time = _PastPlacement(self._index, bus), SteppedTime(Clock().now())
        self._cloud = InstantCloud(placement, choice_policy(settings), settings, time=time)
        self._trials = PolicyTrials(WhatIfs(self._cloud.scheduler))
        self._unreported = set(self._index.trees)

    def _roots_of(self, consumer: ConsumerChange | None) -> set[str]:
        if consumer is None:
            return set()
        return {row.root for id_ in consumer.allocations if (row := self._index.rows.get(id_)) is not None}

    def follow(self, cloud: PastCloud, commit: LoggedCommit) -> None:
        """Apply the next commit to the past state; `cloud` is the state before it."""
        for change in commit.consumers:
            before, after = self._roots_of(cloud.consumers.get(change.consumer)), self._roots_of(change)
            self._instances.subtract(before)
            self._instances.update(after)
            self._unreported |= before | after
        trees = {tree.root: tree for tree, _ in unpacked(commit.trees)} if commit.trees is not None else {}
        self._index.accept(commit.number, commit.changes, trees, commit.aggregates, commit.cells)
        self._unreported |= trees.keys()

    async def tried(self, trial: TrialPolicy, request: BuildRequested) -> TrialResult:
        """Return a request's hosts with the policy of the settings and with the policy `trial`."""
        await self._cloud.report({root: max(self._instances[root], 0) for root in self._unreported})
        self._unreported.clear()
        answer = await self._trials.answer(TryPolicy(policy=trial, requests=(request,)))
        if answer.refusal:
            raise OperationRefused(answer.refusal)
        return answer.results[0]


class Replay:
    """Replays a period, with the recorded decisions about builds that were placed or refused in it."""

    def __init__(
        self, bus: Bus, settings: Settings, changed: ChangedPolicy, decisions: Sequence[RecordedDecision]
    ) -> None:
        self._bus = bus
        self._settings = settings
        self._changed = changed
        self._placed = {decision.build: decision for decision in decisions if decision.host}
        refused = [decision for decision in decisions if not decision.host]
        self._refused = sorted(refused, key=lambda decision: -decision.at)  # newest first, for `pop`
        self._scheduler: PastScheduler | None = None  # made when a decision needs all hosts
        self._result = ReplayResult()

    async def run(self, moment: PastTime, until: float, on_commit: Callable[[int], None]) -> ReplayResult:
        """Replay the period from a moment to the time `until`; call `on_commit` with each change number."""
        history = StateHistory(self._bus, moment, until)
        cloud, result = await history.state(), self._result
        result.first, used = cloud.number, cloud.used()
        async for commit in history.later():
            for decision in self._due(cloud, commit):
                result.decisions.append(await self._repeated(cloud, decision))
            self._count(cloud, commit)
            if self._scheduler is not None:
                self._scheduler.follow(cloud, commit)
            follow(cloud, commit)
            on_commit(commit.number)
        while self._refused and self._refused[-1].at <= until:
            result.decisions.append(await self._repeated(cloud, self._refused.pop()))
        result.last, now = cloud.number, cloud.used()
        result.used = {name: (used[name], now[name]) for name in sorted(used.keys() | now.keys())}
        result.is_proven = await self._equals_stored(cloud)
        return result

    def _due(self, cloud: PastCloud, commit: LoggedCommit) -> list[RecordedDecision]:
        """Return the recorded decisions made after the previous commit and before the given commit was
        complete. `cloud` is the state between the two commits.
        """
        due = []
        while self._refused and self._refused[-1].at <= commit.at:
            due.append(self._refused.pop())
        for change in commit.consumers:
            if change.allocations and change.consumer not in cloud.consumers:
                decision = self._placed.pop(change.consumer, None)
                due += [] if decision is None else [replace(decision, at=commit.at)]
        return due

    def _count(self, cloud: PastCloud, commit: LoggedCommit) -> None:
        for change in commit.consumers:
            if not change.allocations:
                self._result.deleted += change.consumer in cloud.consumers
            elif change.consumer in cloud.consumers:
                self._result.changed += 1
            else:
                self._result.placed += 1

    async def _repeated(self, cloud: PastCloud, decision: RecordedDecision) -> RepeatedDecision:
        if (again := from_record(decision, self._changed)) is not None:
            return again
        if self._scheduler is None:
            self._scheduler = PastScheduler(self._bus, self._settings, cloud)
        result = await self._scheduler.tried(self._changed.trial, decision.request)
        return on_hosts(decision, result, "hosts of then")

    async def _equals_stored(self, cloud: PastCloud) -> bool:
        """Compare the replayed state with the stored one; raise OperationRefused if they differ. Return
        whether the stored state comes from a snapshot that was made during the replayed period.
        """
        history = StateHistory(self._bus, PastTime("the end", number=cloud.number))
        stored = await history.state()
        if stored.differs_from(cloud):
            raise OperationRefused(f"the replayed state of change {cloud.number} differs from the stored one")
        return history.snapshot > self._result.first
