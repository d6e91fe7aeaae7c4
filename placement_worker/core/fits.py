"""Finds the complete sets of allocations that satisfy a planned query, on one host after another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bus.reports import SHARES
from bus.vocabulary import Allocations, Resources
from placement_worker.core.assignment import AssignmentSearch, Choice, fullest_first, shares
from placement_worker.core.index import Snapshot
from placement_worker.core.index_rows import Bools, Row
from placement_worker.core.search_plan import SearchPlan, has_room, limited, options_at

UNSIGNED = 2**64


@dataclass(slots=True)
class Fit:
    """One complete set of allocations for a query. Never change its dicts: other sets share them."""

    anchor: Row
    allocations: dict[str, Resources]
    rows: tuple[Row, ...]  # providers in use, in the order of the allocations
    mappings: dict[str, tuple[str, ...]]  # group suffix → the providers that serve it


class FitFinder:
    """Finds the complete sets of allocations that satisfy a query, on one host after another."""

    def __init__(self, snapshot: Snapshot, made: SearchPlan) -> None:
        index = snapshot.index
        self._snapshot = snapshot
        self._plan = made
        self._sums: dict[tuple[int, int], Resources] = {}
        self.anchors = made.left  # hosts to search: without hosts that offer only what earlier hosts offer
        self._shared: _Shared | None = None
        if made.slots and index.sharers:
            shared = _Shared(snapshot, made)
            if shared.anchors:
                self._shared = shared
                self.anchors = made.left & shared.not_alone()

    def alone(self, anchor: Row) -> bool:
        """Return whether only one set of allocations is possible, because the host is one provider and has no
        pools.
        """
        plan = self._plan
        if not plan.slots:
            return True
        return (
            len(plan.query.groups) == 1
            and len(self._snapshot.members(anchor.uuid)) == 1
            and not (plan.reached is not None and plan.reached[anchor.position])
            and not (self._shared is not None and shares(anchor))
        )

    def only_fit(self, anchor: Row) -> Fit:
        """Return the fit of a host that is one provider: everything is taken from it."""
        group, uuid = self._plan.query.groups[0], anchor.uuid
        return Fit(anchor, {uuid: group.resources}, (anchor,), {group.suffix: (uuid,)})

    def fits(
        self, anchor: Row, *, check_again: bool = False, within: Allocations | None = None
    ) -> Iterator[Fit | None]:
        """Yield the complete sets of allocations on a host, and `None` where the search may pause. With
        `check_again`, check the free capacity of each provider again, because choices may have been
        added, try providers in use first, and yield equal groups with exchanged providers once. With `within`
        in addition, yield only what these allocations cover.
        """
        snapshot, plan, shared = self._snapshot, self._plan, self._shared
        options = options_at(snapshot, plan, anchor)
        if within is not None:
            options = [[limited(row, within.get(row.uuid, {})) for row in rows] for rows in options]
        if check_again:
            options = [
                fullest_first([row for row in rows if has_room(row, slot.asks)], slot.asks, anchor.root)
                for slot, rows in zip(plan.slots, options, strict=True)
            ]
        search = AssignmentSearch(
            snapshot, plan.slots, plan.rules, options, mixed=shared is not None, unordered=check_again
        )
        for way in search:
            yield self._fit(anchor, way) if way is not None else None
        if shared is not None and anchor.position in shared.anchors:
            for way in shared.ways(anchor, options):
                yield self._fit(anchor, way) if way is not None else None

    def is_dead(self, anchor: Row) -> bool:
        """Return whether a host on which the search found nothing cannot satisfy the query. Return False if
        the host could satisfy it with sharing providers alone, and the search left this out because an
        earlier host has the same allocations.
        """
        return self._shared is None or anchor.position not in self._shared.doubles

    def _fit(self, anchor: Row, way: Choice) -> Fit:
        allocations: dict[str, Resources] = {}
        mappings: dict[str, tuple[str, ...]] = {}
        rows = []
        for slot, row in zip(self._plan.slots, way, strict=True):
            uuid = row.uuid
            if slot.asks:
                before = allocations.get(uuid)
                if before is None:
                    allocations[uuid] = slot.asks
                    rows.append(row)
                else:
                    allocations[uuid] = self._sum(before, slot.asks)
            serving = mappings.get(slot.suffix)
            if serving is None:
                mappings[slot.suffix] = (uuid,)
            elif uuid not in serving:
                mappings[slot.suffix] = (*serving, uuid)
        return Fit(anchor, allocations, tuple(rows), mappings)

    def _sum(self, resources: Resources, other: Resources) -> Resources:
        key = id(resources), id(other)
        total = self._sums.get(key)
        if total is None:
            total = self._sums[key] = dict(resources)
            for name, amount in other.items():
                total[name] = total.get(name, 0) + amount
        return total


class _Shared:
    """Finds allocations that use only sharing providers. Many hosts can use the same such allocations, which
    are yielded only for the first of these hosts.
    """

    def __init__(self, snapshot: Snapshot, made: SearchPlan) -> None:
        self._snapshot = snapshot
        self._plan = made
        self.anchors = self._first_of_each()  # in the order of the search
        self.doubles: set[int] = set()  # hosts with allocations that were yielded for an earlier host
        # Provider of the first slot → hosts that may use this provider, each with its options for every slot.
        self._having: dict[int, list[tuple[int, list[set[int]]]]] | None = None

    def not_alone(self) -> Bools:
        index, high = self._snapshot.index, len(self._plan.left)
        not_sharing = ~index.traits[SHARES].mask(high)
        rows = np.flatnonzero(np.logical_or.reduce([slot.in_tree for slot in self._plan.slots]) & not_sharing)
        met = np.zeros(high, np.bool_)
        met[index.root_of[rows]] = True
        met[list(self.anchors)] = True
        return met

    def ways(self, anchor: Row, options: Sequence[Sequence[Row]]) -> Iterator[Choice | None]:
        plan = self._plan
        for way in AssignmentSearch(self._snapshot, plan.slots, plan.rules, _sharing(options)):
            if way is None or self._is_first(anchor, way):
                yield way
            else:
                self.doubles.add(anchor.position)

    def _is_first(self, anchor: Row, way: Choice) -> bool:
        if len(self.anchors) == 1:
            return True
        if self._having is None:
            self._having = {}
            for position in self.anchors:
                row = self._snapshot.row_at(position)
                assert row is not None
                options = _sharing(options_at(self._snapshot, self._plan, row))
                sets = [{row.position for row in rows} for rows in options]
                for provider in sets[0]:
                    self._having.setdefault(provider, []).append((position, sets))
        for position, sets in self._having[way[0].position]:
            if all(row.position in rows for row, rows in zip(way, sets, strict=True)):
                return position == anchor.position
        return True

    def _first_of_each(self) -> dict[int, None]:
        index, plan = self._snapshot.index, self._plan
        high = len(plan.left)
        sharing = index.traits[SHARES].mask(high)
        in_tree = [np.flatnonzero(slot.in_tree & sharing).tolist() for slot in plan.slots]
        away = [np.flatnonzero(slot.away).tolist() if slot.away is not None else [] for slot in plan.slots]
        if not all(mine or other for mine, other in zip(in_tree, away, strict=True)):
            return {}
        possible = plan.left.copy()
        mark = np.zeros(high, np.uint64)  # a hash, equal for hosts with equal options
        for number in range(len(plan.slots)):
            some = np.zeros(high, np.bool_)
            served = [(position, index.root_of[position : position + 1]) for position in in_tree[number]]
            served += [(position, index.reach(position)) for position in away[number]]
            for position, anchors in served:
                some[anchors] = True
                mark[anchors] += np.uint64(hash((number, position)) % UNSIGNED)
            possible &= some
        found = np.flatnonzero(possible)
        _, first = np.unique(mark[found], return_index=True)
        return dict.fromkeys(found[np.sort(first)].tolist())


def _sharing(options: Sequence[Sequence[Row]]) -> list[list[Row]]:
    return [[row for row in rows if shares(row)] for rows in options]
