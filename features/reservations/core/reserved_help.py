"""Explains to a client which reserved capacity prevents that a request fits.

The explanation names the purposes of reservations, but neither their projects nor their hosts: clients of
other projects read the explanation.
"""

from collections.abc import Iterator, Sequence

from bus.vocabulary import Allocations
from scheduler_worker.extension import Choosing, Order, Tally

HeldFor = Sequence[tuple[str, Sequence[Allocations]]]  # purpose of reservations, allocations of their slots


def without_reservations(order: Order, choosing: Choosing, tally: Tally, held: HeldFor) -> Iterator[str]:
    """Yield sentences with the reservations without which an order would fit."""
    alternative = order.preferred
    if alternative.restriction is not None or alternative.request.parts.sections:
        return
    for purpose, allocations in held:
        with choosing.source.packing.releasing(*allocations):
            found = tally.count(alternative, choosing)
        if found.hosts:
            what = f"reserved for {purpose!r}" if purpose else "that is reserved"
            yield f"without the capacity {what}: {found}"
