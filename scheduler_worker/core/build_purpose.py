"""The kernel's purpose of an order: builds of new instances."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from msgspec import structs

from bus.claims import Choice, ConsumerClaim, Held, Retired
from bus.decisions import Decision, noted
from bus.messages import BuildPlaced, Selection
from bus.parts import PlacedParts
from bus.resources import Provider
from bus.vocabulary import Allocations, Id, Message
from scheduler_worker.core.build_specs import spec_of
from scheduler_worker.core.events import ComeAgain
from scheduler_worker.core.held_claim import ClaimPlace, Mappings, alternative_of, mappings_of, place_of
from scheduler_worker.core.order import (
    CANCELLED,
    CANCELLED_CODE,
    DELETED,
    EndedInstance,
    Order,
    Settled,
    alternates_of,
    unplaceable,
    with_ended,
)
from scheduler_worker.core.rule import Alternative
from scheduler_worker.core.sections import section_of


@dataclass(frozen=True)
class BuildPurpose:
    """The purpose of orders for builds. Features derive their purposes from it, and override what differs."""

    name: ClassVar[str] = "build"
    retires: ClassVar[bool] = True
    boots: ClassVar[bool] = True

    @property
    def leaves_lost_host(self) -> bool:
        return False

    @property
    def holds(self) -> Allocations:
        return {}

    def adapt(self, order: Order) -> Order:
        return order

    def consumers(self, order: Order) -> frozenset[Id]:
        return frozenset()

    def claim(self, order: Order, instance: Id, choices: tuple[Choice, ...]) -> ConsumerClaim:
        request = order.request
        return ConsumerClaim(
            consumer=instance, generation=None, choices=choices, project=request.project, user=request.user
        )

    def claim_answered(
        self, order: Order, instance: Id, result: Held | Retired, patience: float
    ) -> Order | ComeAgain:
        return self.retire_answered(order, instance, result)

    def retire_answered(self, order: Order, instance: Id, result: Held | Retired) -> Order:
        match result:
            case Held():
                return structs.replace(order, found=(*order.found, (instance, result)))
            case Retired(unplaceable=True, why=why) if why in (CANCELLED, DELETED):
                cancelled = EndedInstance(instance, why, CANCELLED_CODE)
                return structs.replace(order, ended=(*order.ended, cancelled))
            case Retired(unplaceable=True, why=why):
                return with_ended(order, instance, why)
            case Retired():  # it was built, and deleted: its messages were published before
                return order

    def located(
        self, order: Order, instance: Id, held: Held, providers: Mapping[Id, Provider]
    ) -> Settled | EndedInstance | ComeAgain:
        place = place_of(held, providers)
        if place is None:  # no scheduler placed this consumer: its allocations must not be released
            where = ", ".join(sorted(held.allocations))
            holds = f"{instance} holds resources of {where} already"
            return EndedInstance(instance, f"{holds}, where no agent builds: it is no build of ours")
        return settled_at(order, instance, held, place)

    def ends(self, order: Order) -> Sequence[Message]:
        request, verdict = order.request, order.verdict
        messages: list[Message] = [_placed(order, settled) for settled in order.settled]
        if failed := tuple([each.instance for each in order.ended if each.code != CANCELLED_CODE]):
            messages.append(unplaceable(request, failed, verdict.reason, verdict.decision))
        for each in order.ended:
            if each.code == CANCELLED_CODE:
                decision = Decision(code=CANCELLED_CODE)
                messages.append(unplaceable(request, (each.instance,), each.reason, decision))
        return messages


BUILD = BuildPurpose()


def _placed(order: Order, settled: Settled) -> BuildPlaced:
    request, placed = order.request, settled.alternative
    flavor = section_of(request, settled.instance) if placed is None else placed.alternative_index
    message = BuildPlaced(
        build=settled.instance,
        request=request.request,
        cell=settled.cell,
        chosen=settled.chosen,
        generation=settled.generation,
        alternates=alternates_of(settled),
        spec=spec_of(request, flavor),
        decision=noted(settled.decision, request.unknown_fields),
        reply_to=request.reply_to,
        requested=order.times.requested,
    )
    placed_parts = [part.placed(order.times.waiting_since) for part in request.parts]
    if any(placed_parts):
        message = structs.replace(message, parts=PlacedParts(*placed_parts))
    for part in settled.parts:
        message = part.in_placed(message)
    return message


def settled_at(order: Order, instance: Id, held: Held, place: ClaimPlace) -> Settled:
    """Return an instance as settled on the host that it holds since an earlier delivery of its request; all
    of its alternates are still to be chosen.
    """
    alternative: Alternative | None = None
    groups: Mappings = {}
    if order.attempts:
        alternative = order.alternative_for(instance)
        if not order.request.parts.sections:
            alternative = alternative_of(held, order.alternatives)
        groups = mappings_of(held.allocations, alternative.question, place.providers, place.root)
    chosen = Selection(
        root=place.root, host=place.host, agent=place.agent, choice=Choice(held.allocations), mappings=groups
    )
    return Settled(
        instance=instance,
        cell=place.cell,
        chosen=chosen,
        generation=held.generation,
        decision=Decision(considered=order.tried.considered),
        alternative=alternative,
        lacking=order.alternates if order.attempts else 0,
    )
