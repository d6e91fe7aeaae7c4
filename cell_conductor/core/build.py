"""A build as its conductor knows it, and everything it may have to say."""

from typing import Literal

import msgspec

from bus.build_orders import told_allocations
from bus.claims import ClaimRequested, ConsumerClaim, ReleaseRequested
from bus.claims import keeper as keeper
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
from bus.queries import BuildStands
from bus.requests import BuildSpec
from bus.vocabulary import Compact, Message
from cell_conductor.core.move import AT_SOURCE, BuildMove

Status = Literal[
    "building",
    "swapping",
    "active",
    "moving",
    "verifying",
    "shelved",
    "moved",  # to another cell: it is none of this one's any more
    "error",
    "deleting",
    "deleted",
]
Effects = tuple[Message, ...]

MAX_CAUSE = 4000  # characters, as in vocabulary.Cause


class Leftover(Compact, frozen=True):
    """A guest that may still be on a host the build has left: a consumer of its own keeps its room there."""

    attempt: int
    at: int  # which of the hosts
    until: float  # when its agent is given up
    gone: bool = False  # the agent has said so
    above: int = 0  # guests of attempts up to this one are not meant, and stay
    kept: int = 0  # its keeper has the name of this attempt; 0: of its own


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """One build as its conductor knows it."""

    id: str
    cell: str
    status: Status
    placed: BuildPlaced | None  # None: deleted before anything else was heard of it
    version: int = 0  # the store's fence
    attempt: int = 0  # the number of the last one ordered
    at: int = 0  # which of the hosts that attempt is on
    generation: int | None = None  # what placement holds for it
    started: float = 0.0
    deadline: float = 0.0  # of the attempt, or of its deletion; when it is settled, of its first leftover
    attempts: tuple[Attempt, ...] = ()  # those that are over
    doom: str = ""  # why it can only end in error, once that is certain
    end: Literal["", "active", "error"] = ""  # what it ended as; set once, never changed
    replies: tuple[str, ...] = ()  # who waits for its deletion
    leftovers: tuple[Leftover, ...] = ()
    reshaped: int = 0  # the last change heard of that moved what it holds within its host
    moved: tuple[Selection, ...] = ()  # hosts that moves have brought, beyond those it was placed with
    became: BuildSpec | None = None  # what moves have made of it; None: it is as placed
    move: BuildMove | None = None  # the one it is in, or was in last

    @property
    def hosts(self) -> tuple[Selection, ...]:
        return (self.as_placed.chosen, *self.as_placed.alternates, *self.moved)

    @property
    def host(self) -> Selection:
        return self.hosts[self.at]

    @property
    def spares(self) -> tuple[Selection, ...]:
        """The alternates not tried yet: one that was refused is not asked for again."""
        return self.hosts[self.at + 1 :]

    @property
    def spec(self) -> BuildSpec:
        return self.became or self.as_placed.spec

    @property
    def moving(self) -> BuildMove | None:
        """The move it is in."""
        return self.move if self.move is not None and self.move.is_open else None

    @property
    def guest_on(self) -> Selection:
        """Where its guest is: while it moves, it is not yet where the build belongs."""
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
    """What is told of it to whoever asks."""
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
    """The conductor's reminder to itself. A timer only speaks: what changes a build is always a message, so
    that what comes of it cannot be lost."""
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
    """What placement is to decide: the next host, or that nothing is held."""
    keep = kept_by(build)
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


def kept_by(build: Build) -> str | None:
    """Who is to keep what is held now, since something of this attempt may still be there; None: nobody."""
    kept = (left for left in build.leftovers if left.attempt == build.attempt and not left.gone)
    return next((keeper_of(build, left) for left in kept), None)


def keeper_of(build: Build, left: Leftover) -> str:
    return keeper(build.id, left.kept or left.attempt)


def order(build: Build, *, adopt: bool = False) -> BuildOrdered:
    return BuildOrdered(
        build=build.id,
        attempt=build.attempt,
        cell=build.cell,
        agent=build.host.agent,
        root=build.host.root,
        host=build.host.host,
        spec=build.spec,
        allocations=told_allocations(build.host.root, build.spec, build.host.choice.allocations),
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


def destroy_left(build: Build, left: Leftover) -> DestroyOrdered:
    return destroy(msgspec.structs.replace(build, attempt=left.attempt, at=left.at), left.above)


def host_failed(build: Build, cause: str, ours: bool = True) -> HostFailed:
    """Whoever chooses hosts is to know at once."""
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
    """The same words every time."""
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
        decision=msgspec.structs.replace(build.as_placed.decision, record=None),  # that is for who asks
        reply_to=build.as_placed.reply_to,
    )


def _built_on(build: Build) -> Selection:
    """Where it was when it became active, wherever it has moved since."""
    placed = build.as_placed
    if build.move is not None:
        for tried in reversed(build.attempts):
            for one in (placed.chosen, *placed.alternates):
                if tried.outcome == "built" and (one.host, one.agent) == (tried.host, tried.agent):
                    return one
    return build.host


def end_again(build: Build) -> Effects:
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
