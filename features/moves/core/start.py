"""Starts moves: refuses invalid moves, and makes the build request that finds a destination, the order to the
cell, and the claim that undoes a move; decides the next state of a move until it has started.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from uuid import UUID, uuid5

import msgspec
from msgspec import structs

from bus.claims import STARTED, Choice, ConsumerClaim, Held, Released, Retired, holder_consumer
from bus.decisions import AlsoAsked, Decision, noted
from bus.host_health import FORCED_DOWN
from bus.messages import BuildPlaced, BuildRequested, Selection
from bus.parts import Part, RequestParts, none_of
from bus.queries import BuildStands
from bus.requests import BuildSpec, Hints
from bus.resources import Provider, is_bare_metal
from bus.vocabulary import Allocations, Id, Message, cause_of
from features.moves.core.repeated import content_of
from features.moves.messages import SEEKING as SEEKING
from features.moves.messages import (
    HandoverProgress,
    MoveConflict,
    MoveKind,
    MovePlaced,
    MoveRefused,
    MoveRequested,
)
from scheduler_worker.extension import (
    CANCELLED,
    CANCELLED_CODE,
    DELETED,
    LONGEST_PAUSE,
    SOON,
    ComeAgain,
    DeadLetterRequest,
    EndedInstance,
    Order,
    Purpose,
    Settled,
    TakenOver,
    alternates_of,
    events,
    failed,
    with_ended,
)

# Types of moves that may go to another cell.
CROSSING: tuple[MoveKind, ...] = ("migrate", "resize", "evacuate", "unshelve")

_NOTHING_ASKED = AlsoAsked()


# Returns, by instance, the part that a feature adds to the search for a new host of the instance.
PartsOfMoves = Callable[["Sequence[MoveStart]"], Awaitable[Mapping[Id, Part]]]


@dataclass(frozen=True, slots=True)
class Barred:
    """The refusal of a move; `code` is the reason code for programs (docs/reasons.md)."""

    code: str
    why: str


class MoveStart(msgspec.Struct, frozen=True, gc=False):
    """A requested move with the state of its build: all data that the scheduler needs to decide about it."""

    asked: MoveRequested
    cell: str
    attempt: int  # attempt number of the guest; 0: no guest (unshelve)
    generation: int | None  # generation of the build's consumer, as its cell knows it; None: no allocations
    source: Selection | None  # the present host; None: no host (unshelve)
    spec: BuildSpec  # the present spec of the build
    original: AlsoAsked = _NOTHING_ASKED  # constraints on hosts in the boot request of the instance
    # what joins of other features add to the search for a host, such as the instance's server group
    parts: RequestParts = none_of(RequestParts)
    booted: BuildPlaced | None = None  # the boot message, which a move to another cell passes on

    @property
    def seeks(self) -> bool:
        """Return whether this kind of move needs another host."""
        return self.asked.kind in SEEKING

    @property
    def is_complete(self) -> bool:
        """Return whether the cell reported what the move needs: host, allocations and attempt. They are
        missing if the build was deleted.
        """
        if self.asked.kind == "unshelve":
            return True
        return self.source is not None and self.generation is not None and self.attempt > 0

    @property
    def keep(self) -> Id | None:
        """The consumer that holds the allocations of the source during the move."""
        return holder_consumer(self.asked.build, self.attempt) if self.attempt else None

    @property
    def current_roots(self) -> frozenset[str]:
        """The root of the instance's host; empty if it has none."""
        return frozenset() if self.source is None else frozenset({self.source.root})

    @property
    def becomes(self) -> BuildSpec:
        """The instance after the move, with the requested flavor and image."""
        flavor, image = self.asked.flavor or self.spec.flavor, self.asked.image or self.spec.image
        return msgspec.structs.replace(self.spec, flavor=flavor, image=image)

    def request(self) -> BuildRequested:
        """Return a build request that finds the destination of the move; its id is the move's id."""
        asked, original = self.asked, self.original
        leaves = () if asked.same_host else tuple(self.current_roots)
        return BuildRequested(
            request=asked.move,
            instances=(asked.move,),
            **msgspec.structs.asdict(self.becomes),
            zone=original.zone,
            cell=asked.to_cell or self.cell,
            aggregates=original.aggregates,
            not_aggregates=original.not_aggregates,
            preferred_traits=original.preferred_traits,
            hints=original.hints or Hints(),
            wanted_host=asked.wanted_host,
            forced_host=asked.forced_host,
            ignore_hosts=(*asked.ignore_hosts, *leaves),
            alternates=asked.alternates,
            reply_to=asked.reply_to,
            parts=RequestParts(*self.parts, *asked.parts),
        )

    def leaving_zones(self, zones: Collection[str]) -> "MoveStart":
        """Return this evacuation. Unless the present host is in the zone that the boot request names
        (`zones`: the host's zones), any zone is accepted, because slots for the evacuation are in the present
        host's zones.
        """
        if self.original.zone in zones:
            return self
        return msgspec.structs.replace(self, original=msgspec.structs.replace(self.original, zone=""))

    def placed(
        self,
        generation: int | None,
        chosen: Selection | None,
        alternates: tuple[Selection, ...] = (),
        decision: Decision | None = None,
        cell: str = "",
    ) -> MovePlaced:
        """Return the message that orders the cell of the destination host to begin a move."""
        asked = self.asked
        return MovePlaced(
            move=asked.move,
            build=asked.build,
            kind=asked.kind,
            cell=cell or self.cell,
            attempt=self.attempt,
            generation=generation,
            chosen=chosen,
            # The claim keeps the instance's share of a pool, so every destination must use the same pool.
            alternates=tuple([each for each in alternates if self._may_follow(each, chosen)]),
            spec=self.becomes,
            verify=asked.verify,
            verify_for=asked.verify_for,
            decision=noted(decision or Decision(), asked.unknown_fields),
            reply_to=asked.reply_to,
            shared=self._shared(chosen),
            note=asked.note,
            plan=asked.plan,
            content=content_of(asked),
        )

    def _may_follow(self, alternate: Selection, chosen: Selection | None) -> bool:
        on_source = chosen is None or self.source is None or chosen.root == self.source.root
        return on_source or self._shared(alternate) == self._shared(chosen)

    def _shared(self, destination: Selection | None) -> Allocations:
        """Return the source's allocations on providers that the destination also uses: shared pools."""
        if destination is None or self.source is None or not self.seeks:
            return {}
        had, gets = self.source.choice.allocations, destination.choice.allocations
        return {provider: resources for provider, resources in had.items() if provider in gets}

    def stays(self) -> MovePlaced:
        """Return the message that begins a move without a destination: a rebuild or a shelve."""
        return self.placed(self.generation, self.source if self.asked.kind == "rebuild" else None)


def move_start(asked: MoveRequested, stands: BuildStands, cell: str) -> MoveStart:
    """Return the data needed to begin a move, from its request and the state of its build in a cell
    (`stands`).
    """
    shelved = asked.kind == "unshelve"
    record = stands.placed.decision.record
    original = record.asked if record is not None and record.asked is not None else _NOTHING_ASKED
    return MoveStart(
        asked=asked,
        cell=cell,
        attempt=0 if shelved else stands.attempt,
        generation=None if shelved else stands.generation,
        source=None if shelved else stands.chosen,
        spec=stands.spec or stands.placed.spec,
        original=original,
        booted=stands.placed if asked.to_cell else None,
    )


def misread(asked: MoveRequested, options: Any = None) -> Barred | None:
    """Return a refusal if fields of the move request are invalid or contradict each other, or contradict the
    scheduler's options of requests, else None.
    """
    kind, waits = asked.kind, asked.parts.waits.longest
    problems = [
        (asked.move == asked.build, "move: its id must differ from the build's"),
        (kind == "resize" and asked.flavor is None, "flavor: a resize requires the new flavor"),
        (kind != "resize" and asked.flavor is not None, "flavor: only a resize changes it"),
        (kind == "rebuild" and asked.image is None, "image: a rebuild requires the image"),
        (kind != "rebuild" and asked.image is not None, "image: only a rebuild changes it"),
        (asked.same_host and kind != "resize", "same_host: only a resize may stay where it is"),
        (
            asked.verify and kind not in ("migrate", "resize"),
            "verify: only a migrate or a resize waits to be confirmed",
        ),
        (asked.source and kind == "unshelve", "source: a shelved instance is on no host"),
        (asked.verify_for and not asked.verify, "verify_for: means something only with verify"),
        (
            asked.to_cell and kind not in CROSSING,
            f"to_cell: only stopped instances leave their cell, and not by a {kind}",
        ),
        *(
            (kind not in SEEKING and getattr(asked, name), f"{name}: a host is not selected by a {kind}")
            for name in ("wanted_host", "forced_host", "ignore_hosts")
        ),
        (waits and kind not in SEEKING, f"wait: a {kind} needs no room"),
        (
            waits and asked.to_cell,
            "wait: a move to another cell cannot wait for capacity; request it again later",
        ),
    ]
    message = next((text for wrong, text in problems if wrong), "")
    message = message or next(filter(None, [part.contradiction(asked, options) for part in asked.parts]), "")
    return Barred(code="unreadable", why=message) if message else None


def unready(asked: MoveRequested, stands: BuildStands) -> Barred | None:
    """Return a refusal if the instance's state (`stands`) does not permit the move, else None."""
    status, wanted = stands.status, "shelved" if asked.kind == "unshelve" else "active"
    if status == wanted:
        return None
    if status in ("moving", "verifying"):
        return Barred(code="moving", why=f"it is in another move, {stands.move}")
    return Barred(
        code="status", why=f"it is {status}; this move needs an instance that is {wanted}: {asked.kind}"
    )


def stuck(start: MoveStart, root: Provider | None) -> Barred | None:
    """Return a refusal if the state of the source host prevents the move, else None.

    `root` is the host's root provider, or None if placement has deleted the host.
    """
    asked, source = start.asked, start.source
    if source is None:
        return None
    if asked.source and asked.source not in (source.host, source.root):
        return Barred(
            code="not_on_source", why=f"it is on {source.host}, not on the expected host {asked.source}"
        )
    if root is not None and is_bare_metal(source.choice.allocations, root.id, root.inventories):
        why = f"it is the bare-metal node {source.host} itself, which moves nowhere"
        return Barred(code="bare_metal", why=why)
    fenced = root is not None and FORCED_DOWN in root.traits
    if asked.kind == "evacuate" and not fenced:
        host = source.host
        how = f"`berth host force-down {host}` marks it as down, and `berth host evacuate {host}` does both"
        why = f"its host {host} is not forced down, so its guest may still run: {how}"
        return Barred(code="not_fenced", why=why)
    if asked.kind != "evacuate" and fenced:
        why = (
            f"its host {source.host} is forced down: `berth host evacuate {source.host}` builds it elsewhere"
        )
        return Barred(code="source_down", why=why)
    source_names = {source.host, source.root}
    for name in ("wanted_host", "forced_host"):
        if getattr(asked, name) in source_names and not asked.same_host:
            return Barred(code="same_host", why=f"{name}: it is on {source.host} already")
    return None


def refused(asked: MoveRequested, reason: str, code: str, decision: Decision | None = None) -> MoveRefused:
    """Return the message that a move does not begin, with the reason."""
    return MoveRefused(
        move=asked.move,
        build=asked.build,
        kind=asked.kind,
        reason=cause_of(reason),
        code=code,
        decision=noted(decision or Decision(), asked.unknown_fields),
        reply_to=asked.reply_to,
    )


def undo_claim_id(move: Id) -> Id:
    """Derive from a move's id the id of the claim that undoes the move; placement accepts it only once."""
    return str(uuid5(UUID(move), "taken back"))


def undoing(placed: MovePlaced, generation: int | None) -> ConsumerClaim:
    """Return the claim that restores a failed move's source allocations to the instance."""
    return ConsumerClaim(
        consumer=placed.build,
        generation=generation,
        choices=(Choice(placed.shared),),
        project=placed.spec.project,
        user=placed.spec.user,
        take_over=holder_consumer(placed.build, placed.attempt) if placed.attempt else None,
        begins=undo_claim_id(placed.move),
    )


def no_conductor_reason(cell: str) -> str:
    """Return the reason for a move that was undone because its cell has no conductor."""
    return f"cell {cell!r}: no conductor accepts moves there; the started move was undone"


# The purpose of an order that finds and claims the destination of a move.
#
# The claim carries the move's id (`begins`), which placement accepts only once. For a redelivered move
# request, the result is made from the existing allocations.


@dataclass(frozen=True)
class MovePurpose(Purpose):
    """The purpose of orders for moves. The move's id is the order's only instance, and the claim is that of
    the moving build.
    """

    name: ClassVar[str] = "move"
    boots: ClassVar[bool] = False

    start: MoveStart
    has_started: bool = False  # an earlier delivery of the request made the claim, which begins the move

    @classmethod
    def of(cls, start: MoveStart) -> "MovePurpose":
        """Return the purpose of the order for a move."""
        asked, source, holder = start.asked, start.source, start.keep
        return cls(
            start,
            leaves_lost_host=asked.kind == "evacuate",
            holds=source.choice.allocations if source is not None else {},
            current_roots=start.current_roots,
            replaces=frozenset({asked.build, *([holder] if holder is not None else ())}),
            waiting_since=asked.parts.waits.since,
        )

    def claim(self, order: Order, instance: Id, choices: tuple[Choice, ...]) -> ConsumerClaim:
        """Return a move's claim: the build gets the destination, and its holder consumer keeps the source."""
        start = self.start
        return ConsumerClaim(
            consumer=start.asked.build,
            generation=start.generation,
            choices=choices,
            project=start.spec.project,
            user=start.spec.user,
            keep=start.keep,
            begins=start.asked.move,
        )

    def claim_answered(
        self, order: Order, instance: Id, result: Held | Retired, patience: float
    ) -> Order | ComeAgain:
        """Return what follows if the build's consumer differs from the record of its cell: the claim is
        repeated if another client changed the allocations, and the move fails if the build ended.
        """
        match result:
            case Retired(why=why, unplaceable=False) if why != STARTED:  # the build, not the move, has ended
                why, code = f"it has ended: {why}", "status"
            case Retired():
                return self.retire_answered(order, instance, result)
            case Held():
                differ = "its allocations differ from the record of its cell"
                why, code = f"{differ}: it moves, or another client changed them", "held"
                if order.times.retried_for < patience:
                    return ComeAgain(*SOON, why)
        order = structs.replace(order, instances=(*order.instances, instance))
        return failed(order, why, Decision(code=code))

    def retire_answered(self, order: Order, instance: Id, result: Held | Retired) -> Order:
        match result:
            case Held():
                return with_ended(order, instance, "move: the id belongs to a consumer that holds resources")
            case Retired(unplaceable=False):
                return structs.replace(order, purpose=replace(self, has_started=True))
            case Retired(why=why) if why not in (CANCELLED, DELETED, order.verdict.reason):
                # The move ended earlier for another reason than the one of the present decision.
                verdict = structs.replace(order.verdict, decision=Decision())
                return with_ended(structs.replace(order, verdict=verdict), instance, why)
            case _:
                return super().retire_answered(order, instance, result)

    def located(
        self, order: Order, instance: Id, held: Held, providers: Mapping[Id, Provider]
    ) -> Settled | EndedInstance | ComeAgain:
        located = super().located(order, instance, held, providers)
        if isinstance(located, EndedInstance):  # its agent has not reported since a restart
            return ComeAgain(LONGEST_PAUSE, LONGEST_PAUSE, "no agent is at its destination")
        return located

    def ends(self, order: Order) -> Sequence[Message]:
        """Return the result of the move: a host is claimed, or the move is refused. Return no message if an
        earlier delivery of the request began the move: then `MovePlacing` publishes its order again.
        """
        move, verdict = self.start, order.verdict
        if self.has_started:
            return ()
        for settled in order.settled:
            alternates, decision = alternates_of(settled), settled.decision
            return (move.placed(settled.generation, settled.chosen, alternates, decision, settled.cell),)
        for each in order.ended:
            if each.code == CANCELLED_CODE:
                return (refused(move.asked, each.reason, CANCELLED_CODE, Decision(code=CANCELLED_CODE)),)
        return (refused(move.asked, verdict.reason, verdict.decision.code, verdict.decision),)


def asked_by(start: MoveStart) -> tuple[BuildRequested, MovePurpose]:
    """Return the request that finds the destination of a move, and its purpose."""
    return start.request(), MovePurpose.of(start)


# The state machine of the start of a move.
#
# Placement lets a move begin only once, for any number of schedulers and deliveries: with one claim that
# names the move's id or, without a claim, by retiring this id.


MoveMessages = Sequence[MovePlaced | MoveRefused | MoveConflict | HandoverProgress]
MoveEnd = MoveMessages | ComeAgain | DeadLetterRequest


@dataclass(frozen=True, slots=True)
class SeenThrough:
    """The event that the requested move is not new: its cell has already started or completed it."""


@dataclass(frozen=True, slots=True)
class NotYet:
    """The event that no cell can report the state of the build at present. The move request is retried; after
    a time limit the move is refused with the refusal `barred`.
    """

    barred: Barred
    start: MoveStart | None = None


@dataclass(frozen=True, slots=True)
class Stopped:
    """The event that the move is refused with the refusal `barred`. `start` is the move with the state of its
    build, or None if this state is unknown."""

    barred: Barred
    start: MoveStart | None = None


LookedUpMove = MoveStart | Stopped | NotYet | SeenThrough
MoveEvent = MoveStart | Stopped | SeenThrough | events.End | Released | Retired | Held | MoveMessages


class MoveState(msgspec.Struct, frozen=True, gc=False):
    """The state of a move until it begins, is refused or waits. Immutable: each step makes a new one."""

    asked: MoveRequested
    start: MoveStart | None = None
    barred: Barred | None = None  # the move is refused, but its id is not retired yet
    again: bool = False  # an earlier delivery of the request began the move
    taken: TakenOver | None = None  # no host fits now, and a fallback handles the move
    end: MoveEnd | None = None

    @property
    def begins(self) -> bool:
        """Return whether the move can begin: it has not ended, is not refused, and waits for nothing."""
        return self.end is None and self.barred is None and not self.again


def step_of_start(state: MoveState, event: MoveEvent) -> MoveState:
    """Return the next state of a move after an event, such as a choice of hosts or placement's answer."""
    match event:
        case MoveStart():
            return structs.replace(state, start=event)
        case Stopped(barred=barred, start=start):
            return structs.replace(state, barred=barred, start=start or state.start)
        case SeenThrough():
            return structs.replace(state, end=())
        case events.Publish(messages=()):  # an earlier delivery of the request began the move
            return structs.replace(state, again=True)
        case events.Publish(messages=messages):
            return structs.replace(state, end=messages)
        case TakenOver():
            return structs.replace(state, taken=event)
        case Retired(why=why) if why == STARTED:
            return structs.replace(state, again=True)
        case Retired(why=why):
            code = "cancelled" if why in (CANCELLED, DELETED) else ""
            if state.barred is not None and cause_of(state.barred.why) == why:
                code = state.barred.code
            return structs.replace(state, end=(refused(state.asked, why, code),))
        case Released() if state.barred is not None:
            return structs.replace(state, end=(refused(state.asked, state.barred.why, state.barred.code),))
        case Released() if state.start is not None:  # a move without destination begins here
            return structs.replace(state, end=(state.start.stays(),))
        case Held():
            why = "move: the id belongs to a consumer that holds resources"
            return structs.replace(state, end=(refused(state.asked, why, "unreadable"),))
        case _:
            return structs.replace(state, end=event)
