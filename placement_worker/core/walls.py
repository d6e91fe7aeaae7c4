"""What a cell may touch of placement: what is on its own hosts, and what its builds share with others."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from bus.claims import Retired, keeper

ENDED_ELSEWHERE = "it has ended, not by this cell"
MOST_ATTEMPTS = 1000  # whose leftovers may be kept for one build


@dataclass(frozen=True, slots=True)
class CellWall:
    """Around one cell, as its claims and releases are judged. A root that has no cell is an operator's."""

    cell: str
    cells: Mapping[str, str]  # root → its cell
    sharing: Collection[str]  # providers of operators that share with other trees

    def bars_holder(self, consumer: str, places: Iterable[tuple[str, str]]) -> str:
        """Why a cell cannot speak for who holds something of these (provider, root); empty when it can.

        What operators made may be held beside, as a pool that hosts share is.
        """
        cells = {self.cells.get(root, "") for _, root in places}
        if self.cell in cells and cells <= {self.cell, ""}:
            return ""
        return f"consumer {consumer}: nobody placed it in cell {self.cell}"

    def bars_choice(self, places: Iterable[tuple[str, str]]) -> str:
        """Why nobody of this cell can be put on these (provider, root); empty when he can."""
        at_home = False
        for provider, root in places:
            cell = self.cells.get(root, "")
            at_home |= cell == self.cell
            if cell != self.cell and (cell or provider not in self.sharing):
                return f"provider {provider}: it is none of cell {self.cell}"
        return "" if at_home else f"nothing of it is in cell {self.cell}"

    def bars_keeper(self, consumer: str, keep: str) -> str:
        """Why this consumer's room cannot be left to that one: only names that follow from its own can be
        made from within a cell, so that no build to come finds its own taken."""
        if any(keep == keeper(consumer, attempt) for attempt in range(1, MOST_ATTEMPTS + 1)):
            return ""
        return f"consumer {keep}: it is no clean-up of {consumer}"


def ended(retired: Retired, cell: str) -> Retired:
    """How this cell (empty: who is in none) is told of one who has ended, by what another may have said.

    What was said outside is not for its ears.
    """
    if not cell:
        return retired
    if retired.cell == cell:
        return Retired(why=retired.why, unplaceable=retired.unplaceable)
    return Retired(why=ENDED_ELSEWHERE)


# Reports

DAY = 24 * 3600.0


def bars_report(cell: str, owner: str, *, known: bool, sequence: int, now: float) -> str:
    """Why a cell cannot report this root; empty when it can.

    `owner` is the cell that has it, `known` whether there is such a provider, whoever made it.
    """
    if owner and owner != cell:
        return f"root: it is of cell {owner}; reports of cell {cell} are not believed"
    if known and not owner:
        return f"root: an operator made it; `berth provider reset ROOT --cell {cell}` gives it to cell {cell}"
    if sequence > (now + DAY) * 1_000_000:
        return f"sequence: {sequence} is more than a day ahead of placement's clock"
    return ""


def names_apart(name: str, cell: str, provider: str) -> tuple[str, ...]:
    """What a provider is called whose name another cell's has: the first of these that nobody has."""
    at = f"@{cell}"
    long = f"{at}@{provider}"
    return f"{name[: 200 - len(at)]}{at}", f"{name[: 200 - len(long)]}{long}"
