"""Restricts orders to some hosts."""

from collections.abc import Collection
from dataclasses import replace

from msgspec import structs

from bus.host_health import DISABLED, FORCED_DOWN
from bus.vocabulary import Id
from scheduler_worker.core.order import Order
from scheduler_worker.core.rule import Alternative


def only_on(order: Order, roots: Collection[Id]) -> Order:
    """Return a copy of an order that may use only the given hosts."""
    named = tuple(sorted(roots))
    return order.changed(lambda each: replace(each, question=structs.replace(each.question, roots=named)))


def on_closed(order: Order, roots: Collection[Id]) -> Order:
    """Return a copy of an order that may use only the given hosts. A plan has disabled them for other
    requests, so the order ignores that they are disabled.
    """

    def ignoring_disabled(alternative: Alternative) -> Alternative:
        forbidden = {*alternative.question.root_forbidden, FORCED_DOWN} - {DISABLED}
        question = structs.replace(alternative.question, root_forbidden=tuple(sorted(forbidden)))
        return replace(alternative, question=question)

    return only_on(order, roots).changed(ignoring_disabled)
