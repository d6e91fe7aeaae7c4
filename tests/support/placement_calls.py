"""Functions that call a Placement: report, claim, edit and query."""

from typing import Any

from bus.aggregates import AggregateEdit, AggregateEditRequested, AggregateResult
from bus.cells import CellEdit, CellEditRequested, CellResult
from bus.claims import Claimed, ClaimRequested, ClaimResult, ConsumerClaim
from bus.messages import InventoryReported
from bus.reports import ProviderReport
from bus.resources import (
    Edit,
    Edited,
    EditRequested,
    EditResult,
    FindProviders,
    MakeProvider,
    Provider,
    SetAggregates,
    SetInventories,
    SetTraits,
)
from bus.worker import Worker
from placement_worker import Placement, placement_worker
from tests.support.waiting import in_time


async def report(placement: Placement, *reports: InventoryReported) -> list[str]:
    """Apply reports; return for each why it was refused, or "" if it was applied."""
    return [str(poison or "") for poison in await placement.reports.report_many(reports)]


async def claim(placement: Placement, *orders: ClaimRequested) -> list[Any]:
    """Make claims; return the result of each order, or its list of results if it has several claims."""
    answers = await placement.claims.claim_many(orders)
    return [answer.results[0] if len(answer.results) == 1 else answer.results for answer in answers]


async def take(placement: Placement, *claims: ConsumerClaim, cell: str = "") -> tuple[ClaimResult, ...]:
    """Make the claims of one request, for a cell if one is named; return the result of each."""
    [answer] = await placement.claims.claim_many([ClaimRequested(claims=claims)], cell=cell)
    return answer.results


async def must_take(placement: Placement, *claims: ConsumerClaim, cell: str = "") -> None:
    results = await take(placement, *claims, cell=cell)
    assert all(isinstance(result, Claimed) for result in results), results


async def edit(placement: Placement, edit: Edit) -> EditResult:
    [answer] = await in_time(placement.providers.edit_many([EditRequested(edit=edit)]))
    return answer.result


async def edit_aggregate(placement: Placement, edit: AggregateEdit) -> AggregateResult:
    return (await in_time(placement.aggregates.edit(AggregateEditRequested(edit=edit)))).result


async def edit_cell(placement: Placement, edit: CellEdit) -> CellResult:
    return (await in_time(placement.cells.edit(CellEditRequested(edit=edit)))).result


async def make_providers(placement: Placement, *providers: ProviderReport) -> None:
    """Create providers, which no agent reports, with their contents; parents before children."""
    await placement.book.know_contents(placement.database, providers, placement.clock.now())
    edits: list[Edit] = []
    for each in providers:
        edits.append(MakeProvider(provider=each.id, name=each.name, parent=each.parent))
        if each.inventories:
            edits.append(SetInventories(provider=each.id, inventories=each.inventories))
        if each.traits:
            edits.append(SetTraits(provider=each.id, traits=each.traits))
        if each.aggregates:
            edits.append(SetAggregates(provider=each.id, aggregates=each.aggregates))
    answers = await placement.providers.edit_many([EditRequested(edit=each) for each in edits])
    assert all(isinstance(answer.result, Edited) for answer in answers), answers


async def find_providers(placement: Placement, **query: Any) -> list[Provider]:
    return list((await placement.lookups.providers(FindProviders(**query))).providers)


def silent_placement(placement: Placement, cells: tuple[str, ...] = ("c1",)) -> Worker:
    """Return placement's worker, which announces no changes."""

    async def nothing(*messages: Any) -> None:
        pass

    return placement_worker(placement, nothing, cells)
