"""Ids that are given by their first characters."""

from collections.abc import Iterable

from bus.errors import OperationRefused

SHORTEST_ID = 8  # characters that name an object


def short(id_: str) -> str:
    """Return the beginning of an id, by which commands name it."""
    return id_[:SHORTEST_ID]


def only_one(ids: Iterable[str], begins: str, given: str, what: str = "ids") -> str:
    """Return the id that begins with `begins`, or "" if there is none. If several of these ids (`what`) begin
    so, raise OperationRefused, which quotes the text as it was `given`.
    """
    found = sorted({id_ for id_ in ids if id_.startswith(begins)})
    if len(found) > 1:
        raise OperationRefused(f"{len(found)} {what} begin with {given}: {', '.join(found)}")
    return found[0] if found else ""
