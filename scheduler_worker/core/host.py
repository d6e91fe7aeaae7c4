"""What a filter or a weigher may read of one host."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bus.vocabulary import Candidate, Choice, HostState, Resources, Selection


@dataclass(slots=True, eq=False)
class Host:
    """A candidate, what its host says of itself, and what was chosen there meanwhile."""

    candidate: Candidate
    state: HostState | None = None  # None: not reported yet
    down: str = ""  # why it is held to be down
    recent: int = 0  # builds sent there that its report may not count yet
    taken: Mapping[str, int] = field(default_factory=dict)  # chosen here, not yet seen in placement
    chosen: int = 0  # how often this evaluation chose it
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
        free, taken = self.candidate.free, self.taken
        return not taken or all(
            resource_class not in free or free[resource_class] - taken.get(resource_class, 0) >= amount
            for resource_class, amount in self.asked.items()
        )

    def choose(self) -> None:
        """Count one more of the request as used."""
        taken = dict(self.taken)
        for resource_class, amount in self.asked.items():
            taken[resource_class] = taken.get(resource_class, 0) + amount
        self.taken = taken
        self.recent += 1
        self.chosen += 1

    def unchoose(self) -> None:
        """One less again."""
        self.taken = {
            resource_class: left
            for resource_class, amount in self.taken.items()
            if (left := amount - self.asked.get(resource_class, 0))
        }
        self.recent -= 1
        self.chosen -= 1

    def copy(self) -> "Host":
        return Host(self.candidate, self.state, self.down, self.recent, self.taken, self.chosen)

    def selection(self) -> Selection:
        candidate = self.candidate
        return Selection(
            root=candidate.root,
            host=candidate.host,
            agent=candidate.agent,
            choice=Choice(candidate.allocations, candidate.shapes),
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
