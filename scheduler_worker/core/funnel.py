"""The funnel of a search: what was looked at, what each constraint removed, and how that reads."""

from collections.abc import Collection, Iterator, Sequence

from bus.messages import BuildRequested, CandidatesFound
from bus.vocabulary import Decision, NearMiss, Removal
from scheduler_worker.core.filters import same_zone
from scheduler_worker.core.host import Host
from scheduler_worker.core.ranking import NEAREST, Ranking
from scheduler_worker.core.rooms import Rooms, Taken, nothing_taken

NOT_LOOKED_AT = "not looked at: enough was found before"
MAX_REASON = 3900  # a Cause, with room for the word that fences it
MAX_REFUSED = 16  # how many refusals a record keeps


class Funnel:
    """The pages of one search, shared by the requests that it was made for."""

    def __init__(self, taken: Taken = nothing_taken, per_host: int = 0) -> None:
        self.rooms = Rooms(taken)
        self.cut = False  # may some host be used in more ways than were looked at?
        self._per_host = per_host  # how many these were, at most; 0: all
        self.rankings: list[Ranking] = []
        self.considered = 0
        self._fitting = 0
        self._looked_at = 0
        self._before: tuple[Removal, ...] = ()
        self._nearest: tuple[NearMiss, ...] = ()
        self._zones: set[str] = set()
        self._removals: tuple[Removal, ...] | None = None

    def add(self, found: CandidatesFound, hosts: Sequence[Host], ranking: Ranking) -> None:
        """One more page."""
        self.cut = self.cut or any(len(host.ways) == self._per_host for host in hosts if host.ways)
        if not self.rankings:
            self.considered, self._fitting = found.considered, found.fitting
            self._before, self._nearest = found.removals, found.nearest
        self.rankings.append(ranking)
        self._looked_at += len(hosts)
        self._removals = None
        if same_zone.__name__ in ranking.removed:
            self._zones.update(host.zone for host in hosts)

    @property
    def may_pass(self) -> bool:
        """Does something that passes by itself stand in the way?"""
        return any(ranking.may_pass for ranking in self.rankings)

    @property
    def removals(self) -> tuple[Removal, ...]:
        """What placement's constraints removed, then what ours did."""
        if self._removals is None:
            ours: dict[str, int] = {}
            if self._fitting > self._looked_at:
                ours[NOT_LOOKED_AT] = self._fitting - self._looked_at
            for ranking in self.rankings:
                for name, count in ranking.removed.items():
                    ours[name] = ours.get(name, 0) + count
            self._removals = (*self._before, *_running(max(self._fitting, self._looked_at), ours))
        return self._removals

    @property
    def nearest(self) -> tuple[NearMiss, ...]:
        """Hosts that came furthest: ours passed all of placement's constraints."""
        ours = [miss for ranking in self.rankings for miss in ranking.nearest]
        return (*ours, *self._nearest)[:NEAREST]

    def decision(self, scores: dict[str, float] | None = None, refused: tuple[str, ...] = ()) -> Decision:
        """The record of a decision; without a winner's scores, that of none, with the near misses."""
        return Decision(
            considered=self.considered,
            removals=self.removals,
            nearest=self.nearest if scores is None else (),
            scores=scores or {},
            refused=refused,
        )

    def reason(
        self,
        request: BuildRequested,
        cells: Collection[str],
        zones: Collection[str],
        refused: tuple[str, ...],
    ) -> str:
        """Why there is no host, in a sentence. `cells` and `zones` are those that were ever heard of."""
        if request.cell and self._cell_is_empty(request.cell, cells):
            known_cells = f"; known cells: {', '.join(sorted(cells))}" if cells else ""
            return f"cell: no hosts in cell {request.cell!r}{known_cells}"
        known_zones = sorted({*zones, *self._zones} - {""})
        if request.zone and (known_zones or self._zones) and request.zone not in known_zones:
            known = f"known zones: {', '.join(known_zones)}" if known_zones else "no host names a zone"
            return f"zone: no hosts in zone {request.zone!r}; {known}"
        parts = [f"no valid host among {self.considered}"]
        removed = [f"{removal.constraint} removed {removal.removed}" for removal in self.removals]
        if removed:
            parts.append(", ".join(removed))
        if refused:
            parts.append(f"placement refused {'; '.join(refused)}")
        if self.nearest:
            parts.append("closest " + "; ".join(f"{miss.host} ({miss.lacks})" for miss in self.nearest))
        if len(request.instances) > 1:
            parts.append(f"room is needed for {len(request.instances)} instances at once")
        return ": ".join((parts[0], ". ".join(parts[1:]))) if parts[1:] else parts[0]

    def _cell_is_empty(self, cell: str, cells: Collection[str]) -> bool:
        """Placement knows: a cell that merely nobody was heard of in may be full."""
        if self._before:
            return any(one.about == "cell" and not one.left for one in self._before)
        return not self._looked_at and bool(cells) and cell not in cells


def _running(left: int, removed: dict[str, int]) -> Iterator[Removal]:
    for name, count in removed.items():
        left -= count
        yield Removal(constraint=name, removed=count, left=left)
