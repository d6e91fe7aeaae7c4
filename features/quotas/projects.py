"""Computes the data of the pages about projects: usage, limits and waiting requests."""

from collections.abc import Sequence
from dataclasses import dataclass

from bus.queries import WaitingFound
from control_room.kit import Reply
from features.quotas.messages import DEFAULT, UNLIMITED, ProjectShare, Quota, QuotasFound, shares_of


@dataclass(frozen=True)
class ProjectRow:
    """A row of the table of projects: usage and limits, waiting requests, and fair share."""

    project: str
    shares: Sequence[ProjectShare]  # limited or used resources
    waiting: int | None  # number of waiting requests; None: unknown
    weight: int = 1
    backlog: int = 0  # requests that were not evaluated yet
    share: float = 0.0  # fraction of everything recently served from the backlog


@dataclass(frozen=True)
class ProjectsListed:
    """A page of projects, with the default limits."""

    problem: str  # why placement did not answer; empty: it did
    default: Sequence[tuple[str, int | None]] = ()  # the default limits; None: unlimited
    rows: Sequence[ProjectRow] = ()
    more: str = ""  # `after` of the next page; empty: this is the last page
    from_keystone: bool = False  # the limits come from Keystone: they cannot be edited here
    waiting_problem: str = ""  # why the numbers of waiting requests are unknown


def projects_of(found: Reply[QuotasFound]) -> tuple[str, ...]:
    """Return the projects' ids in placement's answer; the entry with the default limits is no project."""
    quotas = found.answer.quotas if found.answer else ()
    return tuple(quota.project for quota in quotas if quota.project != DEFAULT)


def projects_listed(
    found: Reply[QuotasFound], default: Reply[QuotasFound], waiting: Reply[WaitingFound]
) -> ProjectsListed:
    """Return a page of projects, made from placement's answers about quotas (`found`, `default`) and from a
    scheduler's answer about waiting requests.
    """
    if found.answer is None or default.answer is None:
        return ProjectsListed(found.problem or default.problem)
    counts = waiting.answer.by_project if waiting.answer else None
    backlog, served = (waiting.answer.backlog, waiting.answer.shares) if waiting.answer else ({}, {})
    weights = waiting.answer.weights if waiting.answer else {}
    return ProjectsListed(
        problem="",
        default=[limit for quota in default.answer.quotas for limit in _limits(quota)],
        rows=[
            ProjectRow(
                quota.project,
                shares_of(quota),
                None if counts is None else counts.get(quota.project, 0),
                weight=weights.get(quota.project, weights.get(DEFAULT, 1)),
                backlog=backlog.get(quota.project, 0),
                share=served.get(quota.project, 0.0),
            )
            for quota in found.answer.quotas
            if quota.project != DEFAULT
        ],
        more=found.answer.more,
        from_keystone=found.answer.source == "keystone",
        waiting_problem=waiting.problem,
    )


def _limits(quota: Quota) -> list[tuple[str, int | None]]:
    return [(name, None if limit == UNLIMITED else limit) for name, limit in sorted(quota.limits.items())]
