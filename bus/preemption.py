"""Priority classes, and preemption: builds that take the place of instances with a lower priority."""

from typing import Annotated, Literal

from msgspec import Meta, field

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

BUDGET_SECONDS = 3600.0  # the period of the budget of a project
MOST_LATEST = 1000  # preemptions in one answer
REQUEUE_WAIT = "7d"  # how long a preempted instance waits for another host

Priority = Annotated[int, Meta(ge=0, le=9)]


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
    classes: ShortList[PriorityClass]


class SetPriority(Tagged, frozen=True, kw_only=True):
    priority: PriorityClass


class UnsetPriority(Tagged, frozen=True, kw_only=True):
    name: Word


class PriorityEditRequested(Message, frozen=True, kw_only=True):
    """A request to store, replace or remove a priority class."""

    edit: SetPriority | UnsetPriority


class PriorityEdited(Tagged, frozen=True, kw_only=True):
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
    preemptions: LongList[Preemption]
    used: LargeMap[Text, Whole] = field(default_factory=dict)  # project → victims within one hour
