"""Results of a search in the form of the plain search, over all its pages."""

import msgspec

from bus.queries import CandidatesFound, FindCandidates
from bus.vocabulary import Allocations
from placement_worker.core.index import Index
from placement_worker.core.search import Fit, page
from tests.support.plain_search import Way, way


def taken(allocations: Allocations) -> dict[tuple[str, str], int]:
    return {(uuid, name): amount for uuid, asked in allocations.items() for name, amount in asked.items()}


def as_way(fit: Fit) -> Way:
    return way(taken(fit.allocations), fit.mappings)


def all_pages(index: Index, query: FindCandidates) -> list[CandidatesFound]:
    pages = [page(index, query)]
    while (more := pages[-1].more) is not None:
        assert len(pages) < 50
        pages.append(page(index, msgspec.structs.replace(query, after=more)))
    return pages
