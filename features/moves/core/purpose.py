"""The purpose of an order that finds and claims the destination of a move.

The claim carries the move's id (`begins`), which placement accepts only once. For a redelivered move request,
the result is made from the existing allocations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from msgspec import structs

from bus.claims import BEGUN, Choice, ConsumerClaim, Held, Retired
from bus.decisions import Decision
from bus.messages import BuildRequested
from bus.parts import waits_since
from bus.resources import Provider
from bus.vocabulary import Allocations, Id, Message
from features.moves.core.start import MoveStart, refused
from scheduler_worker.extension import (
    CANCELLED,
    CANCELLED_CODE,
    DELETED,
    LONGEST_PAUSE,
    SOON,
    BuildPurpose,
    ComeAgain,
    EndedInstance,
    Order,
    Settled,
    alternates_of,
    failed,
    with_ended,
)


@dataclass(frozen=True)
class MovePurpose(BuildPurpose):
    """The purpose of orders for moves. The move's id is the order's only instance, and the claim is that of
    the moving build.
    """

    name: ClassVar[str] = "move"
    boots: ClassVar[bool] = False

    start: MoveStart
    has_begun: bool = False  # an earlier delivery of the request made the claim, which begins the move

    @property
    def leaves_lost_host(self) -> bool:
        return self.start.asked.kind == "evacuate"

    @property
    def holds(self) -> Allocations:
        source = self.start.source
        return source.choice.allocations if source is not None else {}

    def adapt(self, order: Order) -> Order:
        times = structs.replace(order.times, waiting_since=waits_since(self.start.asked.parts))
        order = structs.replace(order, times=times)
        return order.with_alternatives(current_roots=self.start.current_roots)

    def consumers(self, order: Order) -> frozenset[Id]:
        holder = self.start.keep
        return frozenset({self.start.asked.build, *([holder] if holder is not None else ())})

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
            case Retired(why=why, unplaceable=False) if why != BEGUN:  # the build, not the move, has ended
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
                return structs.replace(order, purpose=replace(self, has_begun=True))
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
        if self.has_begun:
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
    return start.request(), MovePurpose(start)
