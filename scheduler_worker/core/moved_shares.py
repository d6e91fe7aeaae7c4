"""Counts what a moving instance holds of shared providers (pools) only once."""

from collections.abc import Sequence

from bus.candidates import CandidateSource
from scheduler_worker.core.order import Order
from scheduler_worker.core.rule import Alternative
from scheduler_worker.extension import PLAIN, NoNarrowing, Scope


class MovedShares(NoNarrowing):
    """The narrowing for moves of instances that hold amounts of pools: if the destination uses the same pool,
    the instance needs the amount only once.
    """

    def __init__(self, source: CandidateSource) -> None:
        self._source = source

    def concerns(self, order: Order) -> bool:
        return order.purpose.move is not None and bool(self._source.sharing)

    def scope(self, order: Order, alternatives: Sequence[Alternative]) -> Scope:
        move = order.purpose.move
        if move is None or move.source is None:
            return PLAIN
        pools = self._source.sharing
        held = {
            provider: amounts
            for provider, amounts in move.source.choice.allocations.items()
            if provider in pools
        }
        return Scope(alone=True, held=held) if held else PLAIN
