"""Checks whether names exist: first in memory, then in the database."""

from collections.abc import Collection

from bus.names import FindNames, NameKind
from placement_worker.http.errors import bad_request
from placement_worker.http.refusals import no_class, no_traits
from placement_worker.placement import Placement


async def unknown(placement: Placement, kind: NameKind, names: Collection[str]) -> list[str]:
    """Return the classes or traits that do not exist."""
    missing = [name for name in names if not placement.book.known(kind, name)]
    if missing:
        answer = await placement.classes_and_traits.find(FindNames(kind=kind, names=tuple(missing)))
        there = {named.name for named in answer.names}
        missing = [name for name in missing if name not in there]
    return sorted(missing)


async def check_query(
    placement: Placement, classes: Collection[str], traits: Collection[str], doing: str = ""
) -> None:
    """Refuse a query that names what does not exist."""
    if absent := await unknown(placement, "resource class", classes):
        raise bad_request(f"Invalid resource class in resources parameter: {no_class(', '.join(absent))}")
    if absent := await unknown(placement, "trait", traits):
        raise bad_request(doing + no_traits(absent))
