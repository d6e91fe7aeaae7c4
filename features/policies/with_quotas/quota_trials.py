"""Repeats recorded decisions, the oldest first, with changed quotas."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from msgspec import structs

from features.policies.decisions import RecordedDecision, RepeatedDecision
from features.quotas.messages import DEFAULT, INSTANCES, OverQuota, Quota, over_quota

Limits = Mapping[str, Mapping[str, int]]  # project (DEFAULT: all projects without a separate limit) → limits


def with_quotas(
    decisions: Sequence[RecordedDecision],
    repeated: Sequence[RepeatedDecision],
    quotas: Sequence[Quota],
    changes: Limits,
) -> list[RepeatedDecision]:
    """Return the `repeated` decisions in the same order; a decision that exceeds its project's quota with
    `changes` has no host.

    A project's usage begins with its instances that are not among the decisions. A decision adds to the usage
    only if its instance still exists, because the time of a deleted instance's release is not recorded.
    """
    present, changed = _Usage(quotas, decisions, {}), _Usage(quotas, decisions, changes)
    oldest_first = sorted(zip(decisions, repeated, strict=True), key=lambda pair: (pair[0].at, pair[0].build))
    found: dict[str, RepeatedDecision] = {}
    for decision, result in oldest_first:
        before = present.judge(decision, is_certain=bool(decision.host))
        after = changed.judge(decision)
        found[decision.build] = _judged(result, before, after)
    return [found[decision.build] for decision in decisions]


class _Usage:
    """The limits of projects, and their usage after the decisions so far."""

    def __init__(
        self, quotas: Sequence[Quota], decisions: Sequence[RecordedDecision], changes: Limits
    ) -> None:
        own = {quota.project: {**quota.limits, **changes.get(quota.project, {})} for quota in quotas}
        own |= {project: dict(limits) for project, limits in changes.items() if project not in own}
        self._own = own
        self._used: dict[str, Counter[str]] = defaultdict(Counter)
        for quota in quotas:
            self._used[quota.project].update(quota.used)
        for decision in decisions:
            if decision.exists:
                self._used[decision.request.project].subtract(_growth(decision))

    def judge(self, decision: RecordedDecision, *, is_certain: bool = False) -> OverQuota | None:
        """Return how a decision exceeds its project's quota; if it does not, return None, and count its
        resources as used if its instance exists. `is_certain`: the decision was made, so the quota is not
        checked.
        """
        project, growth = decision.request.project, _growth(decision)
        limits = {**self._own.get(DEFAULT, {}), **self._own.get(project, {})}
        used = {name: max(amount, 0) for name, amount in self._used[project].items()}
        refusal = None if is_certain else over_quota(project, limits, used, growth)
        if refusal is None and decision.exists:
            self._used[project].update(growth)
        return refusal


def _growth(decision: RecordedDecision) -> Counter[str]:
    return Counter({INSTANCES: decision.instances, **decision.amounts})


def _judged(result: RepeatedDecision, before: OverQuota | None, after: OverQuota | None) -> RepeatedDecision:
    hosts = "" if before else result.before, "" if after else result.after
    result = structs.replace(result, before=hosts[0], after=hosts[1])
    if all(hosts):
        return result
    if hosts[0]:
        return structs.replace(result, verdict="nowhere", why=str(after) if after else result.why)
    return structs.replace(result, verdict="placed" if hosts[1] else "none", why="")
