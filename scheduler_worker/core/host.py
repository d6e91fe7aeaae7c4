"""What a filter or a weigher may read of one host, and the ways to use it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from bus.vocabulary import Candidate, Choice, HostState, Resources, Selection
from scheduler_worker.core.rooms import Rooms


@dataclass(slots=True, eq=False)
class Host:
    """A candidate, what its host says of itself, and what was chosen there meanwhile.

    One provider alone offers one way to use it, as often as there is room. A tree may offer several, each
    with providers of its own: `rooms` counts what is left at each of these.
    """

    candidate: Candidate
    state: HostState | None = None  # None: not reported yet
    down: str = ""  # why it is held to be down
    recent: int = 0  # builds sent there that its report may not count yet
    taken: Mapping[str, int] = field(default_factory=dict)  # of the whole host; chosen, not seen in placement
    chosen: int = 0  # how often this evaluation chose it
    rooms: Rooms | None = None  # of a tree
    ways: list[Candidate] = field(default_factory=list)  # of a tree: all that were offered
    asked: Resources = field(init=False)  # what one more of the request takes here

    def __post_init__(self) -> None:
        self.asked = total(self.candidate.allocations)

    @property
    def root(self) -> str:
        return self.candidate.root

    @property
    def zone(self) -> str:
        return self.candidate.zone or (self.state.zone if self.state is not None else "")

    @property
    def building(self) -> int:
        return self.recent + (self.state.building if self.state is not None else 0)

    def free(self, resource_class: str) -> int:
        return self.candidate.free.get(resource_class, 0) - self.taken.get(resource_class, 0)

    def fits(self) -> bool:
        """Is there room for one more beside what was chosen here meanwhile?"""
        if self.rooms is not None:
            return any(map(self.rooms.fits, self.ways))
        free, taken = self.candidate.free, self.taken
        return not taken or all(
            resource_class not in free or free[resource_class] - taken.get(resource_class, 0) >= amount
            for resource_class, amount in self.asked.items()
        )

    def used_up(self) -> bool:
        """Was what it shares with other hosts taken by these?"""
        return self.rooms is not None and not self.fits()

    def ways_now(self, avoid: Collection[str] = ()) -> list[Candidate]:
        """The ways there is room for; those with a provider to avoid come last."""
        if self.rooms is None:
            return [self.candidate]
        ways = list(filter(self.rooms.fits, self.ways))
        if avoid:
            ways.sort(key=lambda way: not way.allocations.keys().isdisjoint(avoid))
        return ways

    def avoided(self, avoid: Collection[str]) -> bool:
        """Is there no way to use it without a provider to avoid?"""
        if self.rooms is None:
            return self.candidate.root in avoid
        return not any(way.allocations.keys().isdisjoint(avoid) for way in self.ways if self.rooms.fits(way))

    def choose(self, way: Candidate) -> None:
        """Count one more of the request as used, in this way."""
        if self.rooms is not None:
            self.rooms.take(way)
        self._count_one()

    def unchoose(self, way: Candidate) -> None:
        """One less again."""
        if self.rooms is not None:
            self.rooms.give_back(way)
        self.taken = {
            resource_class: left
            for resource_class, amount in self.taken.items()
            if (left := amount - self.asked.get(resource_class, 0))
        }
        self.recent -= 1
        self.chosen -= 1

    def fuller(self) -> "Host":
        """As it would weigh with one more of the request."""
        fuller = Host(
            self.candidate,
            self.state,
            self.down,
            self.recent,
            self.taken,
            self.chosen,
            self.rooms,
            self.ways,
        )
        fuller._count_one()
        return fuller

    def _count_one(self) -> None:
        taken = dict(self.taken)
        for resource_class, amount in self.asked.items():
            taken[resource_class] = taken.get(resource_class, 0) + amount
        self.taken = taken
        self.recent += 1
        self.chosen += 1


def selection_of(way: Candidate) -> Selection:
    return Selection(
        root=way.root,
        host=way.host,
        agent=way.agent,
        choice=Choice(way.allocations, way.shapes),
    )


def total(allocations: Mapping[str, Resources]) -> Resources:
    """What is taken of each class, whichever provider gives it."""
    if len(allocations) == 1:
        return next(iter(allocations.values()))
    summed: Resources = {}
    for resources in allocations.values():
        for resource_class, amount in resources.items():
            summed[resource_class] = summed.get(resource_class, 0) + amount
    return summed
