"""A CandidateSource that checks hosts one by one; each host is one provider, and a query has one group."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bus.aggregates import Aggregate
from bus.candidates import Bools, Floats, Ints, OnChange
from bus.cells import RegisteredCell
from bus.decisions import NearMiss, Removal
from bus.queries import Candidate, FindCandidates
from bus.vocabulary import Allocations, Resources


@dataclass(frozen=True)
class PlainSourceHost:
    position: int
    uuid: str
    host: str
    cell: str
    agent: str
    zone: str
    traits: tuple[str, ...]
    aggregates: tuple[str, ...]


@dataclass
class PlainSource:
    """`left` has the real free amounts; with `lag` searches use the amounts of the start.

    With `spaced` every third position is empty, and every host fits every query.
    """

    candidates: Sequence[Candidate] = ()
    left: dict[str, dict[str, int]] = field(default_factory=dict)
    aggregates: dict[str, Aggregate] = field(default_factory=dict)
    cells: dict[str, RegisteredCell] = field(default_factory=dict)
    lag: bool = False
    seen: int = 0
    layout: int = 1
    questions: list[FindCandidates] = field(default_factory=list)
    promised: list[Allocations] = field(default_factory=list)
    unpublished: list[Candidate] = field(default_factory=list)  # hosts it learns of when it is brought level
    levelled: int = 0
    sharing: Mapping[str, Collection[str]] = field(default_factory=dict)
    spaced: bool = False

    @property
    def size(self) -> int:
        return len(self.candidates) * 2 + 1 if self.spaced else len(self.candidates)

    def hosts(self) -> list[PlainSourceHost]:
        return [self.host(self.position_of(index)) for index in range(len(self.candidates))]

    def position_of(self, index: int) -> int:
        return index + index // 2 if self.spaced else index

    def at(self, position: int) -> Candidate:
        return self.candidates[position - position // 3 if self.spaced else position]

    def host(self, position: int) -> PlainSourceHost:
        found = self.at(position)
        return PlainSourceHost(
            position, found.root, found.host, found.cell, found.agent, found.zone, found.traits,
            found.aggregates,
        )  # fmt: skip

    def position(self, root: str) -> int | None:
        roots = enumerate(candidate.root for candidate in self.candidates)
        return next((self.position_of(index) for index, found in roots if found == root), None)

    def named(self, host: str) -> Sequence[str]:
        return [candidate.root for candidate in self.candidates if host in (candidate.host, candidate.root)]

    def free(self, root: str) -> Mapping[str, int]:
        position = self.position(root)
        return {} if position is None else self._free(self.at(position))

    def having(self, resource_class: str, amount: int) -> int:
        return sum(candidate.capacity.get(resource_class, 0) >= amount for candidate in self.candidates)

    def reserve(self, allocations: Allocations) -> None:
        self.promised.append(allocations)

    def withdraw(self, allocations: Allocations) -> None:
        self.promised.remove(allocations)

    def watch(self, on_change: OnChange) -> None: ...

    def watch_for_more(self, on_change: OnChange) -> None: ...

    async def fresh(self) -> None:
        self.levelled += 1
        if self.unpublished:
            self.candidates, self.unpublished = (*self.candidates, *self.unpublished), []
            self.seen, self.layout = self.seen + 1, self.layout + 1

    def search(self, question: FindCandidates, *, empty: bool = False) -> "PlainSourceSearch":
        self.questions.append(question)
        return PlainSourceSearch(self, question, empty=empty)

    def taken(self, root: str) -> dict[str, int]:
        taken: dict[str, int] = {}
        for allocations in self.promised:
            for name, amount in allocations.get(root, {}).items():
                taken[name] = taken.get(name, 0) + amount
        return taken

    def free_of(self, candidate: Candidate) -> dict[str, int]:
        taken = self.taken(candidate.root)
        return {name: amount - taken.get(name, 0) for name, amount in self._free(candidate).items()}

    def _free(self, candidate: Candidate) -> Mapping[str, int]:
        return candidate.free if self.lag else self.left[candidate.root]


class PlainSourceSearch:
    def __init__(self, source: PlainSource, question: FindCandidates, *, empty: bool = False) -> None:
        self._source = source
        self._empty = empty
        self._question = question
        self.asked: Resources = question.groups[0].resources
        self._known = [candidate for candidate in source.candidates if self._wanted(candidate)]
        known = [(index, each) for index, each in enumerate(source.candidates) if self._wanted(each)]
        fitting = [index for index, candidate in known if self._fits(candidate)]
        self.positions: Ints = np.array([source.position_of(index) for index in fitting], np.intp)
        self._fitting = [source.candidates[at] for at in fitting]
        self._free = [source.free_of(candidate) for candidate in self._fitting]

    @property
    def considered(self) -> int:
        return len(self._source.candidates)

    def any_of(self, resource_class: str) -> bool:
        candidates = self._source.candidates
        return any(resource_class in {**each.free, **each.capacity} for each in candidates)

    def free(self, resource_class: str) -> Floats:
        return np.array([free.get(resource_class, 0) for free in self._free], np.float64)

    def capacity(self, resource_class: str) -> Floats:
        return np.array(
            [candidate.capacity.get(resource_class, 0) for candidate in self._fitting], np.float64
        )

    def has(self, trait: str) -> Bools:
        return np.array([trait in candidate.traits for candidate in self._fitting], np.bool_)

    def within(self, aggregate: str) -> Bools:
        return np.array([aggregate in candidate.aggregates for candidate in self._fitting], np.bool_)

    def host(self, position: int) -> PlainSourceHost:
        return self._source.host(position)

    def amounts(self, position: int) -> tuple[Mapping[str, int], Mapping[str, int]]:
        one = self._source.at(position)
        return self._source.free_of(one), one.capacity

    def ways(self, position: int, most: int) -> Sequence[Candidate]:
        one = self._source.at(position)
        if not self._fits(one):
            return ()
        way = Candidate(
            one.root, one.host, one.cell, one.agent, one.zone, {one.root: self.asked}, one.shapes,
            self._source.free_of(one), one.capacity, one.traits, aggregates=one.aggregates,
        )  # fmt: skip
        return (way,)

    def removals(self) -> Sequence[Removal]:
        everybody, known, fitting = self.considered, len(self._known), len(self.positions)
        removals = []
        if known < everybody:
            of_cell = f"cell {self._question.cell}"
            removals.append(
                Removal(constraint=of_cell, removed=everybody - known, left=known, about="cell", code="cell")
            )
        if fitting < known:
            removals.append(Removal(constraint="room", removed=known - fitting, left=fitting, code="class"))
        return removals

    def nearest(self, roots: Collection[str] = (), most: int = 5) -> Sequence[NearMiss]:
        known = [candidate for candidate in self._known if not roots or candidate.root in roots]
        shown = () if len(self.positions) else known[:3]
        return [NearMiss(host=candidate.host, lacks="room") for candidate in shown]

    def _wanted(self, candidate: Candidate) -> bool:
        question = self._question
        if question.roots and candidate.root not in question.roots:
            return False
        if candidate.root in question.not_roots or (question.zone and candidate.zone != question.zone):
            return False
        if not set(question.root_required) <= set(candidate.traits) or set(question.root_forbidden) & set(
            candidate.traits
        ):
            return False
        return not question.cell or candidate.cell == question.cell

    def _fits(self, candidate: Candidate) -> bool:
        free = candidate.capacity if self._empty else self._source.free_of(candidate)
        return self._source.spaced or all(free.get(name, 0) >= amount for name, amount in self.asked.items())
