"""Makes the claims of an order with chosen hosts."""

from msgspec import structs

from bus.claims import ConsumerClaim
from bus.preemption import Preempts
from bus.reservations import RESERVATION
from scheduler_worker.core.drawing import SlotAssignments
from scheduler_worker.core.order import Order
from scheduler_worker.core.roles import group_id


def claims_of(order: Order, slots: SlotAssignments) -> tuple[ConsumerClaim, ...]:
    """Return one claim for each instance with chosen hosts. A claim lists several hosts, best first;
    placement allocates on the first host that still fits."""
    request, holdings = order.request, dict(order.holdings)
    if order.move is not None:
        draw = order.alternative.draw
        return tuple([order.move.claim(slots.choices(draw, pick.choices)) for pick in order.picks])
    claims = []
    together = len({victim.build for some in order.victims for victim in some})
    for at, (instance, pick) in enumerate(zip(order.instances, order.picks, strict=False)):
        draw = order.alternatives[order.index_for(instance)].draw
        choices = slots.choices(draw, pick.choices)
        if (held := holdings.get(instance)) is not None:  # a provider in both is claimed only once
            both = [{**each.allocations, **held.allocations} for each in choices]
            choices = tuple(
                [structs.replace(each, allocations=all_) for each, all_ in zip(choices, both, strict=True)]
            )
        claims.append(
            ConsumerClaim(
                consumer=instance,
                generation=None if held is None else held.generation,
                choices=choices,
                project=request.project,
                user=request.user,
                type=RESERVATION if order.reserves else "INSTANCE",
                client=order.is_external and not order.reserves,
                group=group_id(request),
                topology=request.topology if request.topology.levels else None,
                reserves=order.reserves,
                preempts=_preempts(order, at, together) if together else None,
            )
        )
    return tuple(claims)


def _preempts(order: Order, at: int, together: int) -> Preempts | None:
    if order.preempts is None or not order.victims[at]:
        return None
    return Preempts(
        victims=order.victims[at],
        cell=order.picks[at].choices[0].cell,
        priority=order.request.priority,
        budget=order.preempts.budget,
        together=together,
    )
