"""Quotas: how much of each resource the instances of a project may hold, and messages that query and edit
them in placement, which enforces them in each claim.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta, field

from bus.acts import Act, Requested, sent
from bus.feature import MessagesPart
from bus.topics import ANYONE, Query
from bus.undo import Past, UndoRule
from bus.vocabulary import (
    Contended,
    KeystoneId,
    LargeMap,
    LongList,
    Message,
    Missing,
    Tagged,
    Text,
    Value,
    Whole,
)

OVER_QUOTA = "quota"  # reason code
INSTANCES = "instances"
GROUP_MEMBERS = "server_group_members"  # members of one server group
COUNTS = (INSTANCES, GROUP_MEMBERS)  # names that are no resource class
UNLIMITED = -1
DEFAULT = ""  # in place of a project id: the default limits, for projects without a limit
NAME_OF_DEFAULT = "default"  # the default limits' name for users

Limit = Annotated[int, Meta(ge=UNLIMITED, le=2**53)]
Limits = Annotated[dict[Text, Limit], Meta(max_length=500)]
ProjectOrDefault = Annotated[str, Meta(max_length=255)]


def quota_key(project: str) -> str:
    """Return the key (RuleRefused.wakes_on) of claims that the quota of a project ("": any) refuses."""
    return f"quota:{project}"


def project_named(name: str) -> str:
    """Return the project id for messages about quotas: "" for `default` (the default limits), else `name`."""
    return DEFAULT if name == NAME_OF_DEFAULT else name


def name_of_project(project: str) -> str:
    """Return what users see for a project id in messages about quotas: the id, or `default` for ""."""
    return project or NAME_OF_DEFAULT


class OverQuota(Value, frozen=True, kw_only=True):
    """The excess of a claim over a project's limit of a resource. The claim is refused; it can succeed after
    the project has released something, or after the limit was raised.
    """

    project: KeystoneId
    resource: Text
    limit: Whole
    used: Whole
    asked: Whole  # requested amount, in addition to the used amount

    def __str__(self) -> str:
        return (
            f"quota of project {self.project}: {self.resource} limited to {self.limit}, "
            f"{self.used} used, {self.asked} more asked"
        )


def over_quota(
    project: str, limits: Mapping[str, int], used: Mapping[str, int], growth: Mapping[str, int]
) -> OverQuota | None:
    """Return how `growth`, added to a project's usage, exceeds a limit; None if it does not."""
    for name, limit in limits.items():
        more, before = growth.get(name, 0), used.get(name, 0)
        if more > 0 and limit != UNLIMITED and before + more > limit:
            return OverQuota(project=project, resource=name, limit=limit, used=before, asked=more)
    return None


class Quota(Value, frozen=True, kw_only=True):
    """The limits of a project and what its instances use. A resource without a limit is not limited."""

    project: ProjectOrDefault  # "": the default for all projects
    limits: Limits = field(default_factory=dict)  # set for this project; -1: no limit, despite the default
    # the limits that apply: for each resource the project's limit, or else the default
    effective: Limits = field(default_factory=dict)
    used: LargeMap[Text, Whole] = field(default_factory=dict)


class QuotaBound(Value, frozen=True, kw_only=True):
    """The limit of a project that is reached first if instances, or sets of instances, are added, and how
    many of them it still permits.
    """

    resource: Text
    limit: Whole
    used: Whole
    permits: Whole

    def __str__(self) -> str:
        return f"the quota permits {self.permits:,}: {self.resource}, {self.used:,} of {self.limit:,} used"


def quota_bound(
    limits: Mapping[str, int], used: Mapping[str, int], growth: Mapping[str, int]
) -> QuotaBound | None:
    """Return the limit that is reached first if `growth` is added to the usage again and again, and how many
    times it can be added; None if no limit applies.
    """
    bounds = [
        QuotaBound(
            resource=name, limit=limit, used=used.get(name, 0),
            permits=max(limit - used.get(name, 0), 0) // growth[name],
        )
        for name, limit in sorted(limits.items())
        if limit != UNLIMITED and growth.get(name, 0) > 0
    ]  # fmt: skip
    return min(bounds, key=lambda bound: bound.permits, default=None)


class ProjectShare(Value, frozen=True, kw_only=True):
    """A limited or used resource of a project. Without `limit` it is not limited."""

    project: str
    resource: str
    used: int
    limit: int | None = None
    is_default: bool = False  # the limit is the default

    @property
    def is_over(self) -> bool:
        """Return whether more is used than the limit permits, as after the limit was lowered."""
        return self.limit is not None and self.used > self.limit

    @property
    def percent(self) -> float:
        """Return the used part of the limit in percent, at most 100; 0 without a limit."""
        if self.limit is None:
            return 0.0
        return 100.0 * min(1.0, self.used / self.limit) if self.limit else 100.0 * bool(self.used)


def shares_of(quota: Quota) -> list[ProjectShare]:
    """Return a ProjectShare for each resource that the project uses or has a limit of, sorted by name."""
    return [
        ProjectShare(
            project=quota.project,
            resource=name,
            used=quota.used.get(name, 0),
            limit=None if (limit := quota.effective.get(name, -1)) < 0 else limit,
            is_default=name in quota.effective and name not in quota.limits,
        )
        for name in sorted(quota.effective.keys() | quota.used.keys())
    ]


class SetQuota(Tagged, frozen=True, kw_only=True):
    """An edit that sets limits of a project, or of the default; other limits stay. -1 means unlimited. A
    limit below the present usage is accepted: it refuses further claims."""

    project: ProjectOrDefault = DEFAULT
    limits: Limits


class UnsetQuota(Tagged, frozen=True, kw_only=True):
    """An edit that deletes limits of a project, so that the default applies again."""

    project: ProjectOrDefault = DEFAULT
    resources: LongList[Text] = ()  # empty: all limits


QuotaEdit = SetQuota | UnsetQuota


class QuotaEdited(Tagged, frozen=True, kw_only=True):
    """The answer to an edit of a quota."""

    quota: Quota | None = None
    changed: bool = False


class QuotaSourceIsKeystone(Tagged, frozen=True, kw_only=True):
    """The refusal of an edit because this region's quotas come from Keystone's unified limits."""


QuotaResult = QuotaEdited | Missing | QuotaSourceIsKeystone | Contended


class FindQuotas(Message, frozen=True, kw_only=True):
    """A query for the quotas of `project`. Without `project`: a query for a page of all projects for which a
    limit was set and, with `used`, also of all projects with instances; the default limits come first.
    """

    project: ProjectOrDefault | None = None
    used: bool = False
    after: Text = ""  # only projects after this one, sorted by id
    limit: Annotated[int, Meta(ge=1, le=1000)] = 500


class QuotasFound(Message, frozen=True, kw_only=True):
    """A page of quotas; `source` is where the limits are set."""

    quotas: LongList[Quota]
    more: Text = ""  # `after` of the next page; empty: this is the last page
    source: Literal["berth", "keystone"] = "berth"


class QuotaEditRequested(Message, frozen=True, kw_only=True):
    """A request to set or delete a project's limits."""

    edit: QuotaEdit


class QuotaEditAnswered(Message, frozen=True, kw_only=True):
    result: QuotaResult


QUOTAS = Query(
    "placement.quotas", FindQuotas, QuotasFound, "limits and usage of projects", ANYONE, "placement"
)
EDIT_QUOTA = Query(
    "placement.quota",
    QuotaEditRequested,
    QuotaEditAnswered,
    "set or delete limits of a project, or the default limits",
    ANYONE,
    "placement",
)


# The acts on limits of projects.


def _former_limits(asked: QuotaEditRequested, past: Past) -> Sequence[Message]:
    before, after = past.item("quotas", "project", asked.edit.project)
    was, became = before.get("limits") or {}, after.get("limits") or {}
    former = {name: limit for name, limit in was.items() if became.get(name) != limit}
    new = tuple(sorted(became.keys() - was.keys()))
    edits: list[QuotaEdit] = []
    if former:
        edits.append(SetQuota(project=asked.edit.project, limits=former))
    if new:
        edits.append(UnsetQuota(project=asked.edit.project, resources=new))
    return [QuotaEditRequested(edit=edit) for edit in edits]


PART = MessagesPart(
    acts=(Act("quota", "admin", "limits of projects", sent(EDIT_QUOTA)),),
    requested={
        QuotaEditRequested: Requested(
            state=lambda message: (QUOTAS, FindQuotas(project=message.edit.project)),
            id=lambda message: "" if message.edit.project else "default",
            undo=UndoRule(EDIT_QUOTA, _former_limits),
        )
    },
    done=(QuotaEdited,),
    page_asks=(QUOTAS, EDIT_QUOTA),
)
