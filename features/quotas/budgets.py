"""Judges claims by the quotas of their projects, from limits and usage in memory."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from bus.claims import ConsumerClaim
from bus.vocabulary import Allocations
from features.quotas.messages import DEFAULT, INSTANCES, UNLIMITED, OverQuota, over_quota

Amounts = Mapping[str, int]
Parts = Mapping[str, Counter[str]]  # for a moved instance: each of its consumers → amounts that it holds

LimitRow = tuple[str, str, int]  # project, resource, limit


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """The limits of all projects and the default limits, as a placement process has read them."""

    by_project: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_project)

    def own(self, project: str) -> Mapping[str, int]:
        """Return the limits that are set for the project itself."""
        return self.by_project.get(project, {})

    def effective(self, project: str) -> dict[str, int]:
        """Return the limits that apply to a project: for each resource its limit, else the default; -1 means
        unlimited.
        """
        return {**self.own(DEFAULT), **self.own(project)}

    def of(self, project: str) -> dict[str, int]:
        """Return the limits that can refuse a claim of the project: without unlimited resources."""
        limits = self.effective(project).items()
        return {name: limit for name, limit in limits if limit != UNLIMITED}

    def rows(self) -> set[LimitRow]:
        """Return the limits as rows of the table."""
        listed = self.by_project.items()
        return {(project, name, limit) for project, limits in listed for name, limit in limits.items()}

    def limited(self, projects: Iterable[str]) -> list[str]:
        """Return the given projects that have a limit, each once and sorted."""
        if not self:
            return []
        return sorted({project for project in projects if self.of(project)})


@dataclass(slots=True)
class ProjectUsage:
    """The usage of each resource by a project.

    While a client moves an instance, the instance has several consumers, its parts. The quota then counts,
    for each resource, the largest amount of a part.
    """

    used: Counter[str] = field(default_factory=Counter)
    parts: dict[str, Parts] = field(default_factory=dict)  # moved instance → its parts


@dataclass(slots=True)
class ProjectBudget:
    """The limits of a project and what it uses, including the claims judged before in the same batch."""

    project: str
    limits: Amounts
    usage: ProjectUsage = field(default_factory=ProjectUsage)

    def over(self, growth: Amounts) -> OverQuota | None:
        """Return how the growth of the project's usage exceeds a limit; None if it does not."""
        return over_quota(self.project, self.limits, self.usage.used, growth)

    def take(self, growth: Amounts, sign: int = 1) -> None:
        """Add amounts to the usage, or subtract them if `sign` is -1."""
        for name, more in growth.items():
            self.usage.used[name] += sign * more


def is_counted(claim: ConsumerClaim, holder_types: Collection[str]) -> bool:
    """Return whether a claim's consumer counts against its project's quota. Holder consumers of moves and
    clean-ups do not, so that a move never counts twice; neither do the slots of reservations."""
    return claim.type not in holder_types


def amounts(allocations: Allocations) -> Counter[str]:
    """Return the amounts that a consumer uses of each limited resource: of the resource classes in its
    allocations, and 1 of `instances`. Without allocations, return no amounts.
    """
    total: Counter[str] = Counter()
    for resources in allocations.values():
        total.update(resources)
    if allocations:
        total[INSTANCES] = 1
    return total


def largest(parts: Iterable[Counter[str]]) -> Counter[str]:
    """Return, for each resource, its largest amount in any of the parts."""
    most: Counter[str] = Counter()
    for part in parts:
        most |= part
    return most


def growth_of(after: Counter[str], was: Counter[str]) -> dict[str, int]:
    """Return by how much each resource grows (negative: shrinks) if the amounts `after` replace `was`."""
    return {name: more for name in after.keys() | was.keys() if (more := after[name] - was[name])}


def unknown_resources(names: Iterable[str], known: Collection[str]) -> tuple[str, ...]:
    """Return the names that are neither one of `known` nor `instances`."""
    return tuple(sorted(name for name in names if name not in known and name != INSTANCES))
