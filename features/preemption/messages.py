"""Priority classes, and preemption: builds that take the place of instances with a lower priority."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, convert, field

from bus.acts import Act, Requested, sent
from bus.feature import MessagesPart
from bus.parts import ClaimParts, ConsumerPart, PlacedPart, PlacedParts
from bus.topics import ANYONE, Query, Topic
from bus.undo import Past, UndoRule
from bus.vocabulary import (
    Cause,
    Count,
    Id,
    LargeMap,
    LongList,
    Message,
    Missing,
    Ordinal,
    Seconds,
    ShortList,
    Tagged,
    Taken,
    Text,
    Value,
    Whole,
    Word,
)
from features.waiting.messages import Priority

BUDGET_SECONDS = 3600.0  # the period of the budget of a project
MOST_LATEST = 1000  # preemptions in one answer
SHELVED = "shelved"  # why placement retires a preempted instance that is shelved
REQUEUE_WAIT = "7d"  # how long a preempted instance waits for another host


class PriorityClass(Value, frozen=True, kw_only=True):
    """A name for a priority, with what its requests may preempt and how its instances are preempted."""

    name: Word
    value: Priority
    preempts: bool = False  # requests that fit no host delete instances of lower priority
    budget: Count = 0  # instances that its requests may delete per hour and project; 0: no limit
    grace: Seconds = 0.0  # time in which its instances can stop before they are deleted
    requeue: bool = False  # its instances are shelved instead of deleted, and placed again


class FindPriorities(Message, frozen=True, kw_only=True):
    """A query for all priority classes."""


class PrioritiesFound(Message, frozen=True, kw_only=True):
    """All priority classes."""

    classes: ShortList[PriorityClass]


class SetPriority(Tagged, frozen=True, kw_only=True):
    """Create or replace a priority class."""

    priority: PriorityClass


class UnsetPriority(Tagged, frozen=True, kw_only=True):
    """Delete a priority class."""

    name: Word


class PriorityEditRequested(Message, frozen=True, kw_only=True):
    """A request to store, replace or remove a priority class."""

    edit: SetPriority | UnsetPriority


class PriorityEdited(Tagged, frozen=True, kw_only=True):
    """The answer to a successful edit of a priority class."""

    priority: PriorityClass


class PriorityEditAnswered(Message, frozen=True, kw_only=True):
    result: PriorityEdited | Missing | Taken


class Victim(Value, frozen=True, kw_only=True, omit_defaults=True):
    """An instance that a build of higher priority replaces."""

    build: Id
    generation: Ordinal  # generation of the instance's consumer, as its cell knows it
    attempt: Count  # attempt number of the instance's guest
    holder: Id  # the CLEANUP consumer for the allocations that the claim leaves, until the guest is destroyed
    priority: Priority = 0
    grace: Seconds = 0.0
    requeue: bool = False


class Preempts(ConsumerPart, frozen=True, kw_only=True):
    """The part of a claim that preempts instances of lower priority (victims), which are all on the claimed
    host: the claim gets the victims' allocations, and the victims are retired.
    """

    victims: Annotated[tuple[Victim, ...], Meta(min_length=1, max_length=1000)]
    cell: Word  # cell of the victims
    priority: Priority  # priority of the claiming request
    budget: Count = 0  # maximum number of victims of the project within one hour; 0: no limit
    together: Count = 0  # number of victims of all claims of the request


class Victims(PlacedPart, frozen=True, kw_only=True):
    """The instances to delete before the agent is ordered to build."""

    names_others: ClassVar = True
    replaces_others: ClassVar = True

    preempts: ShortList[Victim] = ()


def victims_of_placed(parts: PlacedParts) -> tuple[Victim, ...]:
    """Return the instances to delete before an agent is ordered to build."""
    part = parts.get(Victims)
    return () if part is None else part.preempts


class Vacating(Message, frozen=True, kw_only=True):
    """A message between two builds: a preempting build asks its victim, an instance of lower priority, to
    leave its host (vacate), or the victim replies that it has left (vacated).
    """

    build: Id  # the receiver: the victim (vacate) or the preempting build (vacated)
    other: Id
    cell: Word
    say: Literal["vacate", "vacated"]
    attempt: Count = 0  # vacate: attempt number of the victim's guest when the victim was chosen
    priority: Priority = 0  # vacate: priority of the preempting build
    grace: Seconds = 0.0
    requeue: bool = False


class BuildPreempted(Message, frozen=True, kw_only=True):
    """An instance was deleted, or shelved, because a build of higher priority takes its place."""

    build: Id
    cell: Word
    by: Id
    reason: Cause
    priority: Priority = 0  # priority of the deleted instance
    requeued: bool = False  # True: the instance is shelved, and its unshelving waits for a host
    requested: Seconds = 0.0  # when the deleted instance was requested


class Preemption(Value, frozen=True, kw_only=True):
    """The record of one victim of a preemption."""

    victim: Victim
    by: Id  # the preempting build
    project: Text  # project of the preempting build
    priority: Priority
    at: Seconds


class FindPreemptions(Message, frozen=True, kw_only=True):
    """A query for the preemptions by the builds in `by`, the preemptions of the instances in `victims`, and
    the `latest` most recent preemptions of the cloud. In the answer, `used` has the number of instances
    preempted within one hour by `project` and, with `latest`, by each of the projects that preempted most.
    """

    by: LongList[Id] = ()
    victims: LongList[Id] = ()
    latest: Annotated[int, Meta(ge=0, le=MOST_LATEST)] = 0  # number of victims
    project: Text | None = None


class PreemptionsFound(Message, frozen=True, kw_only=True):
    """The recorded preemptions that match a query."""

    preemptions: LongList[Preemption]
    used: LargeMap[Text, Whole] = field(default_factory=dict)  # project → victims within one hour


BUILD_VACATE = Topic(
    "build.vacate.{cell}",
    Vacating,
    "between a build and the instances that it preempts: leave the host; the host is left",
    "conductor",
    "conductor",
)
BUILD_PREEMPTED = Topic(
    "build.preempted.{cell}",
    BuildPreempted,
    "an instance was deleted or shelved for a build of higher priority",
    "conductor",
    "scheduler, the client",
    # Without the feature that requeues shelved instances, no worker consumes it. If lost, it is repeated.
    expected=False,
    outsiders=True,
)
PREEMPTIONS = Query(
    "placement.preemptions",
    FindPreemptions,
    PreemptionsFound,
    "instances that builds of higher priority replaced",
    ANYONE,
    "placement",
)
PRIORITIES = Query(
    "scheduler.priorities", FindPriorities, PrioritiesFound, "priority classes", ANYONE, "scheduler"
)
EDIT_PRIORITY = Query(
    "scheduler.priority",
    PriorityEditRequested,
    PriorityEditAnswered,
    "store, replace or remove a priority class",
    ANYONE,
    "scheduler",
)


# The acts on priority classes.


def _former_class(asked: PriorityEditRequested, past: Past) -> Sequence[Message]:
    edit = asked.edit
    name = edit.name if isinstance(edit, UnsetPriority) else edit.priority.name
    before, after = past.item("classes", "name", name)
    if not before:
        return (PriorityEditRequested(edit=UnsetPriority(name=name)),) if after else ()
    return (PriorityEditRequested(edit=SetPriority(priority=convert(before, PriorityClass))),)


PART = MessagesPart(
    parts={ClaimParts: Preempts, PlacedParts: Victims},
    acts=(Act("priority", "admin", "priority classes", sent(EDIT_PRIORITY)),),
    requested={
        PriorityEditRequested: Requested(
            state=lambda message: (PRIORITIES, FindPriorities()),
            targets=("priority", "name"),
            undo=UndoRule(EDIT_PRIORITY, _former_class),
        )
    },
    done=(PriorityEdited,),
    page_asks=(PREEMPTIONS, PRIORITIES),
)
