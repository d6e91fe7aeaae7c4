"""Narrowings: the extension point by which features restrict the choice of an order's hosts."""

from collections.abc import Callable, Iterator, Sequence

from bus.claims import ConsumerClaim
from bus.vocabulary import Allocations, Id
from scheduler_worker.core.choosing import ChoiceNarrowing, Choosing
from scheduler_worker.core.order import Order, choices_of
from scheduler_worker.core.tally import Tally

# Yields sentences with changes that would make an order fit; called without `await`.
Remedies = Callable[[Order, Choosing, Tally], Iterator[str]]


class Narrowing(ChoiceNarrowing):
    """A feature that restricts the hosts of orders, or that makes the choices of orders depend on others.
    This class has no effect; features derive their narrowings from it and replace methods.
    """

    async def prepare(self, orders: Sequence[Order], again: bool) -> Sequence[Order]:
        """Return orders with what the choice of their hosts needs to know, read with one query for all; or
        marked as invalid. The call is repeated, with `again`, for orders with refused claims.
        """
        return orders

    def limit(self, orders: Sequence[Order]) -> Sequence[Order]:
        """Return orders with the limits (`HostLimit`) that hold now; called directly before each choice."""
        return orders

    def add_parts(self, order: Order, claims: Sequence[ConsumerClaim]) -> Sequence[ConsumerClaim]:
        """Return the claims of an order with this feature's parts."""
        return claims

    async def remedies(self) -> Remedies:
        """Return a function that suggests changes of orders without a host; read here what it needs."""
        return lambda order, choosing, tally: iter(())

    def watch(self, order: Order) -> tuple[object, frozenset[str]]:
        """Return a value that differs if a waiting order must be evaluated again, and the hosts on which it
        depends.
        """
        return None, frozenset()


def claims_of(
    order: Order, taken: dict[Id, Allocations], narrowings: Sequence[Narrowing]
) -> tuple[ConsumerClaim, ...]:
    """Return one claim for each instance with chosen hosts. A claim lists several hosts, best first;
    placement allocates on the first host that still fits."""
    claims: list[ConsumerClaim] = []
    for instance, pick in zip(order.instances, order.picks, strict=False):
        choices = choices_of(order.alternative_for(instance), pick.choices, taken)
        claims.append(order.purpose.claim(order, instance, choices))
    for narrowing in narrowings:
        if narrowing.concerns(order):
            claims = list(narrowing.add_parts(order, claims))
    parts = [part for pick in order.picks for part in pick.parts]
    if not parts:
        return tuple(claims)
    for at, pick in enumerate(order.picks):
        for part in pick.parts:
            claims[at] = part.in_claim(claims[at], parts)
    return tuple(claims)
