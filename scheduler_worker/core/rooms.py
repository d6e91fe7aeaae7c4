"""What is left at the providers of trees while an evaluation is used up, provider by provider."""

from collections.abc import Callable, Mapping

from bus.vocabulary import Candidate

Taken = Callable[[str], Mapping[str, int]]  # provider → what was chosen there, not yet seen in placement


def nothing_taken(provider: str) -> Mapping[str, int]:
    return {}


class Rooms:
    """Shared by all hosts of a search: a pool that serves many of them is used up by each."""

    def __init__(self, taken: Taken) -> None:
        self._taken = taken
        self._left: dict[str, dict[str, int]] = {}

    def add(self, way: Candidate) -> None:
        """One more way to use some host."""
        for provider, asked in way.allocations.items():
            left = self._left.setdefault(provider, {})
            free = way.rooms.get(provider, asked)  # nobody said: it fits once
            taken = self._taken(provider)
            for name, amount in asked.items():
                if name not in left:
                    left[name] = free.get(name, amount) - taken.get(name, 0)

    def fits(self, way: Candidate) -> bool:
        return all(
            self._left[provider][name] >= amount
            for provider, asked in way.allocations.items()
            for name, amount in asked.items()
        )

    def take(self, way: Candidate) -> None:
        self._count(way, -1)

    def give_back(self, way: Candidate) -> None:
        self._count(way, +1)

    def taken_at(self, ways: list[Candidate]) -> dict[str, int]:
        """What was chosen at the providers of these ways, by class."""
        summed: dict[str, int] = {}
        for provider in dict.fromkeys(provider for way in ways for provider in way.allocations):
            for name, amount in self._taken(provider).items():
                summed[name] = summed.get(name, 0) + amount
        return summed

    def _count(self, way: Candidate, sign: int) -> None:
        for provider, asked in way.allocations.items():
            left = self._left[provider]
            for name, amount in asked.items():
                left[name] += sign * amount
