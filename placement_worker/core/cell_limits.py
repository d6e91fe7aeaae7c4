"""Restrictions of a cell: it may act on its hosts, and on shared providers that its builds use."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from bus.claims import Retired, holder_consumer

ENDED_ELSEWHERE = "it has ended, not by this cell"
MOST_ATTEMPTS = 1000  # recognized attempts of one build, for the names of holder consumers


@dataclass(frozen=True, slots=True)
class CellLimits:
    """Around one cell, as its claims and releases are judged. A root that has no cell is an operator's."""

    cell: str
    cells: Mapping[str, str]  # root → its cell
    sharing: Collection[str]  # providers of operators that share with other trees

    def bars_holder(self, consumer: str, places: Iterable[tuple[str, str]]) -> str:
        """Return why a cell cannot act for a consumer with allocations on these (provider, root), or an empty
        string.

        Operators' providers, for example shared pools, are permitted.
        """
        cells = {self.cells.get(root, "") for _, root in places}
        if self.cell in cells and cells <= {self.cell, ""}:
            return ""
        return f"consumer {consumer}: nobody placed it in cell {self.cell}"

    def bars_choice(self, places: Iterable[tuple[str, str]]) -> str:
        """Return why this cell cannot place a consumer on these (provider, root), or an empty string."""
        at_home = False
        for provider, root in places:
            cell = self.cells.get(root, "")
            at_home |= cell == self.cell
            if cell != self.cell and (cell or provider not in self.sharing):
                return f"provider {provider}: it is none of cell {self.cell}"
        return "" if at_home else f"nothing of it is in cell {self.cell}"

    def refuses_holder(self, consumer: str, keep: str) -> str:
        """Return why the allocations cannot move to that holder consumer, or an empty string.

        A cell may create only holder consumers with ids derived from the build's id, so that it cannot
        occupy the id of a future build.
        """
        if any(keep == holder_consumer(consumer, attempt) for attempt in range(1, MOST_ATTEMPTS + 1)):
            return ""
        return f"consumer {keep}: it is no clean-up of {consumer}"


def ended(retired: Retired, cell: str) -> Retired:
    """Return how a retired consumer is reported to this cell (empty: no cell). Reasons from outside of the
    cell are hidden.
    """
    if not cell:
        return retired
    if retired.cell == cell:
        return Retired(why=retired.why, unplaceable=retired.unplaceable)
    return Retired(why=ENDED_ELSEWHERE)


# Reports

DAY = 24 * 3600.0


def bars_report(cell: str, owner: str, *, known: bool, sequence: int, now: float) -> str:
    """Return why a cell cannot report this root, or an empty string.

    `owner` is the owning cell; `known` says that a provider with this id exists, whatever its origin.
    """
    if owner and owner != cell:
        return f"root: it is of cell {owner}; reports of cell {cell} are not believed"
    if known and not owner:
        return f"root: an operator made it; `berth provider reset ROOT --cell {cell}` gives it to cell {cell}"
    if sequence > (now + DAY) * 1_000_000:
        return f"sequence: {sequence} is more than a day ahead of placement's clock"
    return ""


def names_apart(name: str, cell: str, provider: str) -> tuple[str, ...]:
    """Yield names for a provider whose name another cell uses; the first free one is taken."""
    at = f"@{cell}"
    long = f"{at}@{provider}"
    return f"{name[: 200 - len(at)]}{at}", f"{name[: 200 - len(long)]}{long}"
