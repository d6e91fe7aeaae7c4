"""Checks that a cell claims, releases and retires only what is in the cell."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from msgspec import structs

from bus import claims

ENDED_ELSEWHERE = "it has ended, not by this cell"
MOST_ATTEMPTS = 1000  # ids of holder consumers are accepted for attempts up to this number


@dataclass(frozen=True, slots=True)
class CellLimits:
    """Checks that a cell's claims and releases use no root providers outside the cell."""

    cell: str
    cells: Mapping[str, str]  # root → cell
    sharing: Collection[str]  # sharing providers that belong to no cell

    def bars_holder(self, consumer: str, places: Iterable[tuple[str, str]]) -> str:
        """Return why the cell may not change a consumer with allocations at `places` (pairs of provider and
        root); "" if it may.
        """
        cells = {self.cells.get(root, "") for _, root in places}
        if self.cell in cells and cells <= {self.cell, ""}:
            return ""
        return f"consumer {consumer}: it was not placed in cell {self.cell}"

    def bars_choice(self, places: Iterable[tuple[str, str]]) -> str:
        """Return why the cell may not place a consumer at `places` (pairs of provider and root); "" if it
        may.
        """
        at_home = False
        for provider, root in places:
            cell = self.cells.get(root, "")
            at_home |= cell == self.cell
            if cell != self.cell and (cell or provider not in self.sharing):
                return f"provider {provider}: it is not in cell {self.cell}"
        return "" if at_home else f"nothing of it is in cell {self.cell}"

    def refuses_holder(self, consumer: str, holder: str) -> str:
        """Return why the cell may not use `holder` as the id of a holder consumer; "" if it may. Only ids
        derived from the build's id are allowed, so that a cell cannot occupy the id of another build.
        """
        if any(holder == claims.holder_consumer(consumer, number) for number in range(1, MOST_ATTEMPTS + 1)):
            return ""
        return f"consumer {holder}: it is no clean-up of {consumer}"


def ended(retired: claims.Retired, cell: str) -> claims.Retired:
    """Return the retirement of a consumer as `cell`, which sent the request, may see it: the reason is hidden
    unless this cell retired the consumer. If `cell` is empty, the reason is visible.
    """
    if not cell:
        return retired
    if retired.cell == cell:
        return structs.replace(retired, cell="")
    return claims.Retired(why=ENDED_ELSEWHERE)
