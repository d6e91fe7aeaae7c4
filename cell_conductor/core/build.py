"""Defines the state of a build in its cell, and makes the messages about the build."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from bus import messages
from bus.agent_builds import sent_allocations
from bus.claims import Choice, ClaimRequested, ConsumerClaim, ReleaseRequested
from bus.claims import holder_consumer as holder_consumer
from bus.parts import Part, Parts
from bus.repetitions import is_other, refusal
from bus.requests import BuildSpec
from bus.vocabulary import Compact, Message, cause_of

Status = Literal[
    "building",
    "swapping",
    "active",
    "held",  # a course has the build, possibly for months; `held_as` is the status to show
    "error",
    "deleting",
    "deleted",
]
# reasons for which a build ends in error although no host failed
DELETED_BEFORE = "deleted before it was built"
DELETED_WHILE_BUILDING = "deleted while building"
ABORTED = "aborted"  # an agent reported that no host can build the instance
AttemptOutcome = Literal["built", "failed", "refused", "timed out"]
Effects = tuple[Message, ...]


class Leftover(Compact, frozen=True):
    """A guest left behind; a holder consumer has its resources until its destruction or a time limit."""

    attempt: int
    at: int  # index of the host in `Build.hosts`
    until: float  # time after which the resources are released without the agent's confirmation
    is_destroyed: bool = False  # True if the agent has confirmed that the guest is destroyed
    above: int = 0  # the order to destroy excludes guests with attempt numbers up to this
    holder_attempt: int = 0  # the attempt number in the holder consumer's id; 0: equal to `attempt`


class BuildParts(Parts[Part]):
    """The values that courses keep about a build."""

    __slots__ = ()


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a build in its cell, as stored: host, attempt, status, guests left behind, and parts of
    features.
    """

    id: str
    cell: str
    status: Status
    held_as: str = ""  # the status to show of a held build, from its course
    placed: messages.BuildPlaced | None  # None if the build was deleted before it was placed
    version: int = 0  # version of the stored record: an update of another version fails
    attempt: int = 0  # number of the last attempt ordered
    at: int = 0  # index in `hosts` of the host of the last attempt
    generation: int | None = None  # consumer generation in placement; None: no allocations
    started: float = 0.0
    deadline: float = 0.0  # time limit of the attempt or of the deletion; for other states, see `timed`
    attempts: tuple[messages.Attempt, ...] = ()  # finished attempts
    doom: str = ""  # why the build must end in error; empty: it can still succeed
    end: Literal["", "active", "error"] = ""  # how the build ended ("": it has not); never changed
    replies: tuple[str, ...] = ()  # reply addresses of the clients that wait for the deletion
    leftovers: tuple[Leftover, ...] = ()
    reshaped: int = 0  # change number of the last reshape that changed its allocations
    added_hosts: tuple[messages.Selection, ...] = ()  # hosts that the scheduler chose later
    new_spec: BuildSpec | None = None  # the spec after a resize or rebuild; None: as placed
    parts: BuildParts = BuildParts()  # the state of courses: a course with state is asked before the kernel

    @property
    def shown(self) -> str:
        """Return the status to show to users."""
        return self.held_as or self.status

    @property
    def hosts(self) -> tuple[messages.Selection, ...]:
        """The chosen host and its alternates, in the order in which they are tried."""
        return (self.as_placed.chosen, *self.as_placed.alternates, *self.added_hosts)

    @property
    def host(self) -> messages.Selection:
        """The host of the present attempt."""
        return self.hosts[self.at]

    @property
    def untried(self) -> tuple[messages.Selection, ...]:
        """Return the alternates that were neither tried nor refused, in their order."""
        return self.hosts[self.at + 1 :]

    @property
    def spec(self) -> BuildSpec:
        """The flavor, image and further properties of the instance; a resize changes it."""
        return self.new_spec or self.as_placed.spec

    def holder_of(self, left: Leftover) -> str:
        """Return the id of the consumer that holds the resources of a guest left behind."""
        return holder_consumer(self.id, left.holder_attempt or left.attempt)

    @property
    def as_placed(self) -> messages.BuildPlaced:
        """The message with which the scheduler placed the build; an error if it was deleted before."""
        assert self.placed is not None, f"{self.id} was deleted before it was placed"
        return self.placed


Stepped = tuple[Build, Effects]  # a build after an event, and the messages of the event


def new_build(placed: messages.BuildPlaced, now: float) -> Build:
    """Return the build that a message of the scheduler begins."""
    return Build(
        id=placed.build,
        cell=placed.cell,
        status="building",
        placed=placed,
        attempt=1,
        generation=placed.generation,
        started=now,
    )


_PLACED_AS = "flavor", "image", "project", "user", "metadata", "name"


def conflict(build: Build, repeated: object) -> messages.BuildConflict | None:
    """Return the refusal of a repeated request that has other content than the request of the build; None if
    the content is the same or unknown, or if the event `repeated` is about no repeated request.
    """
    placed = build.placed
    if placed is None or not isinstance(repeated, messages.BuildPlaced | messages.BuildEndRequested):
        return None
    if not placed.content or not repeated.content:
        return None
    fields = ["request"] if repeated.request != placed.request else []
    if not fields and not is_other(placed.content, repeated.content):
        return None
    if isinstance(repeated, messages.BuildPlaced):
        first, second = placed.spec, repeated.spec
        fields += [name for name in _PLACED_AS if getattr(first, name) != getattr(second, name)]
    why = f"digests {repeated.content} and {placed.content}"
    if fields:
        why = f"different: {', '.join(fields)}; {why}"
    request = repeated.request or placed.request
    return refusal(request, (build.id,), why, repeated.reply_to, cell=build.cell, fields=tuple(fields))


def overdue(build: Build) -> messages.AgentReported:
    """Return the report that a build exceeded its time limit; the conductor sends it to itself."""
    return messages.AgentReported(**attempt_fields(build), outcome="overdue")


def attempt_fields(
    build: Build,
    attempt: int | None = None,
    guest_on: messages.Selection | messages.GuestMessage | None = None,
) -> dict[str, Any]:
    """Return the fields of an order or report that name build, attempt, agent and host. `attempt`: None for
    the current attempt. `guest_on`: the host, or a report of its agent; None for the build's host.
    """
    guest_on = guest_on or build.host
    return {
        "build": build.id,
        "attempt": build.attempt if attempt is None else attempt,
        "cell": build.cell,
        "agent": guest_on.agent,
        "root": guest_on.root,
        "host": guest_on.host,
    }


def claim_or_release(build: Build) -> ClaimRequested | ReleaseRequested:
    """Return the request that a build sends to placement: release all its allocations if it is deleted or
    must end in error, else claim its next alternate.
    """
    holder = leftover_holder(build)
    if build.status == "deleting" or build.doom:
        retire = "deleted" if build.status == "deleting" else cause_of(f"error: {build.doom}")
        return ReleaseRequested(consumer=build.id, generation=build.generation, retire=retire, keep=holder)
    choices = (host.choice for host in build.untried)
    return claim_of(build.id, build.generation, build.spec, *choices, keep=holder)


def claim_of(
    consumer: str, generation: int | None, spec: BuildSpec, *choices: Choice, **more: Any
) -> ClaimRequested:
    """Return a claim for a build's consumer with these choices."""
    claim = ConsumerClaim(
        consumer=consumer,
        generation=generation,
        choices=choices,
        project=spec.project,
        user=spec.user,
        **more,
    )
    return ClaimRequested(claims=(claim,))


def leftover_holder(build: Build) -> str | None:
    """Return the id of the holder consumer for the guest that the current attempt left behind, or None."""
    leftovers = (left for left in build.leftovers if left.attempt == build.attempt and not left.is_destroyed)
    return next(map(build.holder_of, leftovers), None)


def order(build: Build, *, adopt: bool = False) -> messages.BuildOrdered:
    """Return the order to the agent of the present attempt. `adopt`: take over an existing guest instead."""
    return messages.BuildOrdered(
        **attempt_fields(build),
        spec=build.spec,
        allocations=sent_allocations(build.host.root, build.spec, build.host.choice.allocations),
        mappings=build.host.mappings,
        adopt=adopt,
    )


def destroy(build: Build, above: int = 0) -> messages.DestroyOrdered:
    """Return the order to destroy the guest of the present attempt and of earlier ones, above the attempt
    `above`.
    """
    return messages.DestroyOrdered(**attempt_fields(build), above=above)


def destroy_reported(build: Build, report: messages.GuestMessage, above: int = 0) -> messages.DestroyOrdered:
    """Return the order to destroy the guests of a build's attempts with numbers greater than `above`, up to
    and including the attempt of the report.
    """
    return messages.DestroyOrdered(**attempt_fields(build, report.attempt, report), above=above)


def host_failed(build: Build, cause: str, ours: bool = True) -> messages.HostFailed:
    """Return the message that the host has failed to build; `ours` is False if the request caused the
    failure.
    """
    return messages.HostFailed(**attempt_fields(build), cause=cause_of(cause), ours=ours)


def ended(build: Build) -> messages.BuildEnded:
    """Return the message `BuildEnded` about an ended build; repeated calls return the same message."""
    assert build.end, f"{build.id} has not ended"
    active = build.end == "active"
    guest_on = _built_on(build)
    return messages.BuildEnded(
        build=build.id,
        request=build.as_placed.request,
        cell=build.cell,
        status=build.end,
        host=guest_on.host if active else "",
        root=guest_on.root if active else "",
        agent=guest_on.agent if active else "",
        reason="" if active else build.doom,
        attempts=build.attempts,
        decision=replace(build.as_placed.decision, record=None),  # not needed by subscribers
        reply_to=build.as_placed.reply_to,
    )


def ended_unknown(asked: messages.BuildEndRequested) -> Effects:
    """Return the end of a build of which the cell has no record, and whose claim has ended."""
    if asked.request is None:
        return ()
    reason = cause_of(f"the cell has no record of it; its claim has ended: {asked.why}")
    ended = messages.BuildEnded(
        build=asked.build,
        request=asked.request,
        cell=asked.cell,
        status="error",
        reason=reason,
        reply_to=asked.reply_to,
    )
    return (ended,)


def _built_on(build: Build) -> messages.Selection:
    placed = build.as_placed
    hosts = {(host.host, host.agent): host for host in (*placed.alternates[::-1], placed.chosen)}
    built = (tried for tried in reversed(build.attempts) if tried.outcome == "built")
    found = (hosts.get((tried.host, tried.agent)) for tried in built)
    return next((host for host in found if host is not None), build.host)


def repeated_end(build: Build) -> Effects:
    """Return the end of the build again, if it has ended."""
    return (ended(build),) if build.end else ()


def deleted(build: Build, reply_to: str) -> messages.BuildDeleted:
    """Return the message that the build is deleted."""
    known = build.placed is not None
    return messages.BuildDeleted(build=build.id, cell=build.cell, reply_to=reply_to, known=known)


def attempt_over(
    host: messages.Selection, outcome: AttemptOutcome, cause: str, started: float, now: float
) -> messages.Attempt:
    """Return the record of an ended attempt."""
    times = {"started": started, "ended": now}
    return messages.Attempt(host=host.host, agent=host.agent, outcome=outcome, cause=cause_of(cause), **times)


def timed(build: Build, limits: Sequence[float]) -> Build:
    """Return a build that waits for no answer, with its deadline set to the earliest of `limits`."""
    deadline = min(limits, default=0.0)
    return build if build.deadline == deadline else replace(build, deadline=deadline)
