"""Arrays of the free capacity of all hosts, and the instances on hosts, for features that plan how to free
capacity.
"""

from collections.abc import Collection, Sequence
from functools import reduce
from operator import and_

import numpy as np

from bus.candidates import Bools, CandidateSearch, PlacedHost, SenselessQuery
from bus.errors import AnswerRefused, NoAnswer, Unroutable
from bus.packing import RowPacking
from bus.queries import FindInstances, Instance
from bus.vocabulary import Allocations, portions, totals
from scheduler_worker.core.choosing import Choosing
from scheduler_worker.core.fitting import FoundHosts
from scheduler_worker.core.rule import Alternative
from scheduler_worker.dependencies import together
from scheduler_worker.queries import CellQueries

HOSTS_AT_ONCE = 32  # number of parallel queries for the instances of a host


class HostArrays(RowPacking):
    """The free amounts and capacities of the hosts that searches found, with a row for each row of the
    index.
    """

    def __init__(self, size: int, classes: Sequence[str]) -> None:
        super().__init__(classes, np.zeros((size, len(classes))), np.zeros((size, len(classes))))

    def put(self, search: CandidateSearch) -> None:
        """Enter the free amounts and capacities of the found hosts."""
        for column, name in enumerate(self.classes):
            self.free[search.positions, column] = search.free(name)
            self.whole[search.positions, column] = search.capacity(name)

    def accepting(self, choosing: Choosing, alternative: Alternative) -> Bools:
        """Return a mask of the hosts that would accept a flavor if they were empty; also store the free
        amounts and capacities of the hosts in this object's arrays `free` and `whole`.
        """
        mask = np.zeros(len(self.free), np.bool_)
        if (found := accepting(choosing, alternative)) is not None:
            search, accepted = found
            self.put(search)
            mask[search.positions] = accepted
        return mask


def accepting(choosing: Choosing, alternative: Alternative) -> tuple[CandidateSearch, Bools] | None:
    """Search for the hosts that fit a flavor if they are empty. Return the result with a mask of the found
    hosts that pass all filters on arrays of hosts, or None if the flavor's query is invalid, or if a filter
    fails.
    """
    alternative = choosing.renewed(alternative)
    try:
        search = choosing.source.search(alternative.question, empty=True)
        found = FoundHosts(alternative, search, choosing.now, choosing.hosts, choosing.policy)
    except SenselessQuery:
        return None
    everywhere = np.ones(search.positions.size, np.bool_)
    return search, reduce(and_, [np.asarray(mask, np.bool_) for _, mask in found.masks], everywhere)


async def active_instances(cells: CellQueries, hosts: Sequence[PlacedHost]) -> list[Instance]:
    """Return the active instances on hosts; hosts of cells that do not reply are left out."""
    found: list[Instance] = []
    for some in portions(hosts, HOSTS_AT_ONCE):
        for instances in await together([_active_on(cells, host) for host in some]):
            found += instances
    return found


async def _active_on(cells: CellQueries, host: PlacedHost) -> Sequence[Instance]:
    question = FindInstances(cell=host.cell, host=host.uuid, statuses=("active",), limit=1000)
    try:
        return (await cells.instances(question)).instances
    except (Unroutable, NoAnswer, AnswerRefused):
        return ()


def amounts_on_host(held: Allocations, sharing: Collection[str]) -> dict[str, int]:
    """Return the sum of allocations by resource class, without allocations from pools."""
    return totals({provider: amounts for provider, amounts in held.items() if provider not in sharing})
