"""A build as its conductor knows it, and the messages about it."""

from typing import Literal

import msgspec

from bus.agent_builds import sent_allocations
from bus.claims import ClaimRequested, ConsumerClaim, ReleaseRequested
from bus.claims import holder_consumer as holder_consumer
from bus.messages import (
    AgentReported,
    Attempt,
    BuildDeleted,
    BuildEnded,
    BuildOrdered,
    BuildPlaced,
    DestroyOrdered,
    HostFailed,
    Selection,
)
from bus.moves import MoveReported
from bus.queries import BuildStands
from bus.requests import BuildSpec
from bus.vocabulary import MAX_CAUSE, Compact, Message
from cell_conductor.core.move import AT_SOURCE, BuildMove

Status = Literal[
    "building",
    "swapping",
    "active",
    "moving",
    "verifying",
    "shelved",
    "moved",  # to another cell, which it belongs to
    "error",
    "deleting",
    "deleted",
]
Effects = tuple[Message, ...]


class Leftover(Compact, frozen=True):
    """A guest that may still be on a host that the build has left. A consumer of its own holds its
    resources.
    """

    attempt: int
    at: int  # index of the host
    until: float  # when the agent's confirmation is not awaited any longer
    gone: bool = False  # the agent has confirmed it
    above: int = 0  # guests of attempts up to this one stay
    kept: int = 0  # the attempt in the holder's name, if not this one; 0: this one


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """One build as its conductor knows it."""

    id: str
    cell: str
    status: Status
    placed: BuildPlaced | None  # missing if the build was deleted before it was placed
    version: int = 0  # optimistic lock of the store
    attempt: int = 0  # number of the last attempt ordered
    at: int = 0  # index of the host of that attempt
    generation: int | None = None  # generation of its claim in placement
    started: float = 0.0
    deadline: float = 0.0  # of the attempt or the deletion; of a settled build, of its first leftover
    attempts: tuple[Attempt, ...] = ()  # finished attempts
    doom: str = ""  # why it can only end in error, once that is certain
    end: Literal["", "active", "error"] = ""  # its end; set once and never changed
    replies: tuple[str, ...] = ()  # addresses that wait for its deletion
    leftovers: tuple[Leftover, ...] = ()
    reshaped: int = 0  # the last change that moved its allocations within the host
    moved: tuple[Selection, ...] = ()  # hosts added by moves
    became: BuildSpec | None = None  # its spec after moves, if changed
    move: BuildMove | None = None  # its current or last move

    @property
    def hosts(self) -> tuple[Selection, ...]:
        return (self.as_placed.chosen, *self.as_placed.alternates, *self.moved)

    @property
    def host(self) -> Selection:
        return self.hosts[self.at]

    @property
    def spares(self) -> tuple[Selection, ...]:
        """Return the alternates not tried yet. A refused alternate is not tried again."""
        return self.hosts[self.at + 1 :]

    @property
    def spec(self) -> BuildSpec:
        return self.became or self.as_placed.spec

    @property
    def moving(self) -> BuildMove | None:
        """Return the move in progress, if any."""
        return self.move if self.move is not None and self.move.is_open else None

    @property
    def guest_on(self) -> Selection:
        """Return the host of the guest; during a move it is not yet the host of the build."""
        move = self.moving
        if move is None or not move.was:
            return self.host
        waits = move.phase in AT_SOURCE or (move.phase in ("build", "undo") and move.kind == "evacuate")
        return self.hosts[move.source] if waits else self.host

    @property
    def as_placed(self) -> BuildPlaced:
        assert self.placed is not None, f"{self.id} was deleted before it was placed"
        return self.placed


def stands(build: Build) -> BuildStands:
    """Return the answer to a query about the build."""
    return BuildStands(
        build=build.id,
        status=build.status,
        placed=build.as_placed,
        host=build.guest_on.host,
        attempts=build.attempts,
        reason=build.doom,
        attempt=build.attempt,
        generation=build.generation,
        chosen=build.host,
        spec=build.spec,
        move=build.move.id if build.move is not None else None,
    )


def overdue(build: Build) -> AgentReported:
    """Return the conductor's reminder to itself. Only messages change builds, so a timer publishes one."""
    return AgentReported(
        build=build.id,
        attempt=build.attempt,
        cell=build.cell,
        agent=build.host.agent,
        root=build.host.root,
        host=build.host.host,
        outcome="overdue",
    )


def question(build: Build) -> ClaimRequested | ReleaseRequested:
    """Return the question to placement: for the next host, or for the release."""
    keep = leftover_holder(build)
    if build.status == "deleting":
        return ReleaseRequested(consumer=build.id, generation=build.generation, retire="deleted", keep=keep)
    if build.doom:
        retire = f"error: {build.doom}"[:MAX_CAUSE]
        return ReleaseRequested(consumer=build.id, generation=build.generation, retire=retire, keep=keep)
    claim = ConsumerClaim(
        consumer=build.id,
        generation=build.generation,
        choices=tuple(spare.choice for spare in build.spares),
        project=build.spec.project,
        user=build.spec.user,
        keep=keep,
    )
    return ClaimRequested(claims=(claim,))


def leftover_holder(build: Build) -> str | None:
    """Return the consumer that will hold the current resources for a possible leftover of this attempt, if
    any.
    """
    kept = (left for left in build.leftovers if left.attempt == build.attempt and not left.gone)
    return next((holder_consumer_of(build, left) for left in kept), None)


def holder_consumer_of(build: Build, left: Leftover) -> str:
    return holder_consumer(build.id, left.kept or left.attempt)


def order(build: Build, *, adopt: bool = False) -> BuildOrdered:
    return BuildOrdered(
        build=build.id,
        attempt=build.attempt,
        cell=build.cell,
        agent=build.host.agent,
        root=build.host.root,
        host=build.host.host,
        spec=build.spec,
        allocations=sent_allocations(build.host.root, build.spec, build.host.choice.allocations),
        mappings=build.host.mappings,
        adopt=adopt,
    )


def destroy(build: Build, above: int = 0) -> DestroyOrdered:
    return DestroyOrdered(
        build=build.id,
        attempt=build.attempt,
        cell=build.cell,
        agent=build.host.agent,
        root=build.host.root,
        host=build.host.host,
        above=above,
    )


def destroy_reported(build: Build, report: AgentReported | MoveReported, above: int = 0) -> DestroyOrdered:
    """Return the order to destroy the guest that the report is about, where it was reported."""
    return DestroyOrdered(
        build=build.id,
        attempt=report.attempt,
        cell=build.cell,
        agent=report.agent,
        root=report.root,
        host=report.host,
        above=above,
    )


def destroy_left(build: Build, left: Leftover) -> DestroyOrdered:
    return destroy(msgspec.structs.replace(build, attempt=left.attempt, at=left.at), left.above)


def host_failed(build: Build, cause: str, ours: bool = True) -> HostFailed:
    """Return the notice to schedulers about a failed host."""
    return HostFailed(
        root=build.host.root,
        host=build.host.host,
        agent=build.host.agent,
        cell=build.cell,
        build=build.id,
        attempt=build.attempt,
        cause=cause[:MAX_CAUSE],
        ours=ours,
    )


def ended(build: Build) -> BuildEnded:
    """Return the end of the build; always the same message."""
    assert build.end, f"{build.id} has not ended"
    active = build.end == "active"
    there = _built_on(build)
    return BuildEnded(
        build=build.id,
        request=build.as_placed.request,
        cell=build.cell,
        status=build.end,
        host=there.host if active else "",
        root=there.root if active else "",
        agent=there.agent if active else "",
        reason="" if active else build.doom,
        attempts=build.attempts,
        decision=msgspec.structs.replace(build.as_placed.decision, record=None),  # the record is for queries
        reply_to=build.as_placed.reply_to,
    )


def _built_on(build: Build) -> Selection:
    """Return the host where the build became active, wherever it moved since."""
    placed = build.as_placed
    if build.move is not None:
        for tried in reversed(build.attempts):
            for selection in (placed.chosen, *placed.alternates):
                if tried.outcome == "built" and (selection.host, selection.agent) == (
                    tried.host,
                    tried.agent,
                ):
                    return selection
    return build.host


def repeated_end(build: Build) -> Effects:
    return (ended(build),) if build.end else ()


def deleted(build: Build, reply_to: str) -> BuildDeleted:
    known = build.placed is not None
    return BuildDeleted(build=build.id, cell=build.cell, reply_to=reply_to, known=known)


def attempt_over(
    build: Build, outcome: Literal["built", "failed", "timed out"], cause: str, now: float
) -> Attempt:
    return Attempt(
        host=build.host.host,
        agent=build.host.agent,
        outcome=outcome,
        cause=cause[:MAX_CAUSE],
        started=build.started,
        ended=now,
    )
