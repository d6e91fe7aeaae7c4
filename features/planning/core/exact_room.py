"""Searches all sequences of moves in a small cloud for the least disruptive plan that makes room.

The search (A*) goes on from the state with the least cost so far plus a lower bound of the rest. The bound is
the least over all layouts, which are the possible hosts of the builds: the instances that must leave these
hosts. A layout is left out if the builds and all instances fit on the hosts in no arrangement.

Equal states are searched once. Instances with equal amounts and destinations are exchangeable, so a state
counts them by host. Hosts of equal capacity that the same instances and builds accept are exchangeable too.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

import numpy as np

from bus.candidates import Floats, Ints
from bus.packing import RowPacking
from features.planning.core.moved_cloud import SLACK, CloudState, MovableInstance, PlannedMove, lost_by
from features.planning.core.room_demand import RoomDemand

MOST_HOSTS = 8
ROUNDING = 1e-6  # of costs
MOST_LAYOUTS = 3000
MOST_STATES = 2000  # states from which the search goes on, with few layouts: one to two seconds
FEW_LAYOUTS = 50
MOST_EQUAL = 200  # plans of equal cost that are compared by what they leave usable
MOVE = 10_000.0  # weight of a move in a cost; the sizes of all moves of a plan are less together
TOO_LARGE = f"all plans are compared only in clouds of at most {MOST_HOSTS} hosts"
TOO_MANY = f"all plans are compared only if the builds have at most {MOST_LAYOUTS:,} choices of hosts"
ENDED = "the search ended after {states:,} states of the cloud"
Counts = tuple[int, ...]  # by kind: the instances on one host
State = tuple[Counts, ...]  # by host
Loads = tuple[float, ...]  # what the builds on one host hold together
Cost = tuple[float, int]  # moves, weighted, with their size; stopped instances
Step = tuple[int, int, int]  # kind of instance, and its two hosts


@dataclass(frozen=True, slots=True)
class ExactRoom:
    """The result of a search: the moves, and the host of each build in the sequence of the demand's parts.
    Without `unproven`, no other plan is better, or if none is found, no plan exists.
    """

    found: bool = False
    unproven: str = ""  # why not all plans were compared
    moves: tuple[PlannedMove, ...] = ()
    targets: tuple[int, ...] = ()
    lost: float = 0.0  # how much less the usual requests could use afterwards


@dataclass(slots=True)
class _Kind:
    """Instances that are exchangeable in a plan, with the hosts to which they may move."""

    amounts: tuple[float, ...]
    size: float
    lives: bool
    group: str | None  # an anti-affinity group
    hosts: list[int]  # numbers of hosts in the search
    there: dict[int, list[MovableInstance]] = field(default_factory=dict)  # by host, before the first move


def search_all(
    cloud: CloudState, demand: RoomDemand, budget: int, below: tuple[int, float, int] | None
) -> ExactRoom:
    """Return the least disruptive plan of at most `budget` moves with a cost less than `below`. If plans of
    equal cost differ by what they leave usable, the cost may be that of `below`.
    """
    rows = _rows(cloud, demand)
    if len(rows) > MOST_HOSTS or not cloud.instances.keys() >= set(rows.tolist()):
        return ExactRoom(unproven=TOO_LARGE)
    needed = np.sum([part.amounts * part.count for part in demand.parts], axis=0)
    # Moves do not add to what is free in all.
    if (np.maximum(cloud.packing.free[rows], 0.0).sum(axis=0) < needed - SLACK).any():
        return ExactRoom()
    layouts = list(_layouts(cloud, demand, rows))
    if len(layouts) > MOST_LAYOUTS:
        return ExactRoom(unproven=TOO_MANY)
    return _Search(cloud, demand, rows, layouts).run(budget, below)


def _rows(cloud: CloudState, demand: RoomDemand) -> Ints:
    """Return the hosts that can receive a build or an instance, or that have a movable instance. If there are
    more than MOST_HOSTS, return only enough of them to show it.
    """
    concerned = demand.could_hold(cloud).copy()
    concerned[[host for host, there in cloud.instances.items() if there]] = True
    judged = set[object]()
    for there in cloud.instances.values():
        for each in there:
            if concerned.sum() > MOST_HOSTS:
                return np.flatnonzero(concerned)
            kind = id(each.accepted), each.amounts.tobytes()
            if kind not in judged:
                judged.add(kind)
                concerned |= each.accepted & cloud.packing.fits_empty(each.amounts)
    return np.flatnonzero(concerned)


def _layouts(cloud: CloudState, demand: RoomDemand, rows: Ints) -> Iterator[tuple[int, ...]]:
    """Yield the possible hosts of all builds, as indices in `rows` in the sequence of the demand's parts. At
    most one more than MOST_LAYOUTS are yielded.
    """
    builds = [number for number, part in enumerate(demand.parts) for _ in range(part.count)]
    masks = [part.could_hold(cloud)[rows] for part in demand.parts]
    packing = cloud.packing
    left = RowPacking(packing.classes, packing.whole[rows].copy(), packing.whole[rows])
    chosen: list[int] = []
    yielded = 0

    def extend(at: int) -> Iterator[tuple[int, ...]]:
        nonlocal yielded
        if at == len(builds):
            yielded += 1
            yield tuple(chosen)
            return
        part, hosts = demand.parts[builds[at]], masks[builds[at]]
        first = chosen[-1] if at and builds[at - 1] == builds[at] else 0  # builds of a part are alike
        if demand.packed is not None:
            domains = demand.packed[rows]
            hosts = hosts & (domains == domains[chosen[0]] if chosen else domains > 0)
        open_ = np.zeros(len(cloud.packing), np.bool_)
        open_[rows] = hosts
        open_ = demand.open_to(open_, [int(rows[each]) for each in chosen])
        for host in np.flatnonzero(open_[rows]).tolist():
            if host < first or yielded > MOST_LAYOUTS or not left.fits(part.amounts, host):
                continue
            chosen.append(host)
            with left.trying() as trial:
                trial.claim(host, part.amounts)
                yield from extend(at + 1)
            chosen.pop()

    return extend(0)


class _Search:
    """One search: the kinds of instances, the layouts, and what was computed about hosts."""

    def __init__(
        self, cloud: CloudState, demand: RoomDemand, rows: Ints, layouts: Sequence[tuple[int, ...]]
    ) -> None:
        self._cloud = cloud
        self._shapes = [part.shapes for part in demand.parts for _ in range(part.count)]
        self._rows = rows.tolist()
        self._scale = cloud.packing.scale.tolist()
        self._kinds = _kinds(cloud, self._rows)
        self._first: State = tuple(
            [tuple([len(kind.there.get(host, ())) for kind in self._kinds]) for host in range(len(rows))]
        )
        free = cloud.packing.free[rows].tolist()
        # Capacity of each host for movable instances and builds: what cannot move is subtracted.
        self._room = [
            [has + held for has, held in zip(row, self._held(counts), strict=True)]
            for row, counts in zip(free, self._first, strict=True)
        ]
        self._loads: list[list[Loads]] = [[(0.0,) * len(self._scale)] for _ in self._rows]
        numbers = self._numbered_loads(demand, layouts)
        fits = [self._fits_empty(row) for row in numbers.tolist()]
        self._layouts = [layout for layout, can in zip(layouts, fits, strict=True) if can]
        self._numbers = numbers[fits]
        self._equal_hosts = self._exchangeable(cloud, demand)
        self._needs: dict[tuple[int, Counts], Floats] = {}  # host and its instances → need for each layout
        self._free: dict[tuple[int, Counts], list[float]] = {}

    def _numbered_loads(self, demand: RoomDemand, layouts: Sequence[tuple[int, ...]]) -> Ints:
        """Return for each layout and host the number of the host's load in `_loads`."""
        amounts = [part.amounts for part in demand.parts for _ in range(part.count)]
        numbers = np.zeros((len(layouts), len(self._rows)), np.intp)
        known: list[dict[Loads, int]] = [{loads[0]: 0} for loads in self._loads]
        for at, layout in enumerate(layouts):
            for host in set(layout):
                each = [amounts[build] for build, on in enumerate(layout) if on == host]
                load = tuple(np.sum(each, axis=0).tolist())
                if load not in known[host]:
                    known[host][load] = len(self._loads[host])
                    self._loads[host].append(load)
                numbers[at, host] = known[host][load]
        return numbers

    def _fits_empty(self, layout: Sequence[int]) -> bool:
        """Return whether the builds of a layout (by host: the number of its load) fit if all instances that
        can move leave.
        """
        return all(
            not needed or needed <= has + SLACK
            for host, load in enumerate(layout)
            for needed, has in zip(self._loads[host][load], self._room[host], strict=True)
        )

    def _exchangeable(self, cloud: CloudState, demand: RoomDemand) -> list[list[int]]:
        """Return the sets of hosts that differ in nothing but their instances, without sets of one host."""
        alike: dict[Hashable, list[int]] = {}
        could_hold = [part.could_hold(cloud) for part in demand.parts]
        for host, row in enumerate(self._rows):
            key = (
                tuple(self._room[host]),
                tuple([bool(mask[row]) for mask in could_hold]),
                tuple([host in kind.hosts for kind in self._kinds]),
                tuple([limit.key(row) for limit in demand.limits]),
                None if demand.packed is None else int(demand.packed[row]),
            )
            alike.setdefault(key, []).append(host)
        return [hosts for hosts in alike.values() if len(hosts) > 1]

    def _canonical(self, state: State) -> State:
        """Return a state that is equal for states that differ only by an exchange of equal hosts."""
        if not self._equal_hosts:
            return state
        found = list(state)
        for hosts in self._equal_hosts:
            for host, counts in zip(hosts, sorted([state[host] for host in hosts]), strict=True):
                found[host] = counts
        return tuple(found)

    def run(self, budget: int, below: tuple[int, float, int] | None) -> ExactRoom:
        if not self._layouts:
            return ExactRoom()
        limit = (MOVE * below[0] + below[1], below[2]) if below else (MOVE * (budget + 1) - 1, 0)
        equal: list[tuple[int, State]] = []  # plans of the least cost: stopped instances, and last states
        most = np.inf  # the cost of these plans
        first = _least(self._total(self._first))
        best: dict[State, Cost] = {self._canonical(self._first): (0.0, 0)}
        parents: dict[State, tuple[State, Step]] = {}
        heap, left = [(first, 0, 0.0, self._first)], self._most_states()
        while heap and heap[0][0] <= most and len(equal) < MOST_EQUAL:
            least, stopped, done, state = heappop(heap)
            done = -done
            if best[self._canonical(state)] != (done, stopped):
                continue  # reached at a lower cost meanwhile
            if least - done < MOVE / 2:
                equal.append((stopped, state))
                most = done + ROUNDING if self._compares else -np.inf
                continue
            if not left:
                is_fewest = below is not None and least >= MOVE * below[0]
                why = "" if equal or is_fewest else ENDED.format(states=self._most_states())
                return replace(self._best(equal, parents), unproven=why)
            left -= 1
            for step, bound in self._steps(state, limit[0] - done - MOVE):
                kind = self._kinds[step[0]]
                cost = round(done + MOVE + kind.size, 8), stopped + (not kind.lives)
                least = round(cost[0] + bound, 7)
                if not self._is_below(limit, least, cost[1]):
                    continue
                after = _moved(state, step)
                key = self._canonical(after)
                if key not in best or cost < best[key]:
                    best[key], parents[after] = cost, (state, step)
                    heappush(heap, (least, cost[1], -cost[0], after))
        return self._best(equal, parents)

    @property
    def _compares(self) -> bool:
        """Return whether plans of equal cost are compared by what they leave usable."""
        return self._cloud.usable is not None

    def _is_below(self, limit: Cost, cost: float, stopped: int) -> bool:
        if abs(cost - limit[0]) > ROUNDING:
            return cost < limit[0]
        return stopped < limit[1] or (stopped == limit[1] and self._compares)

    def _best(
        self, equal: Sequence[tuple[int, State]], parents: dict[State, tuple[State, Step]]
    ) -> ExactRoom:
        """Return of plans of equal cost the one that stops the fewest instances, then leaves most usable."""
        if not equal:
            return ExactRoom()
        fewest = min(stopped for stopped, _ in equal)
        plans = [self._result(state, parents) for stopped, state in equal if stopped == fewest]
        return min(plans, key=lambda plan: plan.lost)

    def _total(self, state: State) -> Floats:
        """Return for each layout a lower bound of the cost of the moves until its builds fit."""
        total: Floats = np.sum([self._need(host, counts) for host, counts in enumerate(state)], axis=0)
        return total

    def _most_states(self) -> int:
        return MOST_STATES * FEW_LAYOUTS // max(len(self._layouts), FEW_LAYOUTS)

    def _steps(self, state: State, most: float) -> Iterator[tuple[Step, float]]:
        """Yield each possible move with a lower bound of the cost of the moves that are necessary after it,
        if the bound and the size of the instance are at most `most` together.
        """
        needs = [self._need(host, counts) for host, counts in enumerate(state)]
        steps, sizes = list[Step](), list[float]()
        without, added = list[Floats](), list[Floats]()  # what the hosts of each step then need
        for number, sources, hosts in self._possible(state):
            fewer = [self._need(host, _changed(state[host], number, -1)) - needs[host] for host in sources]
            more = [self._need(host, _changed(state[host], number, 1)) - needs[host] for host in hosts]
            pairs = [(at, to) for at in range(len(sources)) for to in range(len(hosts))]
            pairs = [(at, to) for at, to in pairs if sources[at] != hosts[to]]
            steps += [(number, sources[at], hosts[to]) for at, to in pairs]
            sizes += [self._kinds[number].size] * len(pairs)
            without += [fewer[at] for at, _ in pairs]
            added += [more[to] for _, to in pairs]
        if steps:
            total: Floats = np.sum(needs, axis=0)
            bounds = (np.array(without) + np.array(added) + total).min(axis=1)
            bounds[bounds < MOVE / 2] = 0.0  # what adding and subtracting sizes has left
            for at in np.flatnonzero(bounds + np.array(sizes) <= most + ROUNDING).tolist():
                yield steps[at], float(bounds[at])

    def _possible(self, state: State) -> Iterator[tuple[int, list[int], list[int]]]:
        """Yield each kind of instance that can move, with the hosts where it is, and that can take one."""
        free = [self._free_on(host, counts) for host, counts in enumerate(state)]
        for number, kind in enumerate(self._kinds):
            sources = [host for host, counts in enumerate(state) if counts[number]]
            if sources and (hosts := [host for host in kind.hosts if self._takes(state, free, host, kind)]):
                yield number, sources, hosts

    def _takes(self, state: State, free: Sequence[Sequence[float]], host: int, kind: _Kind) -> bool:
        for has, amount in zip(free[host], kind.amounts, strict=True):
            if amount and has < amount - SLACK:
                return False
        return kind.group is None or not any(
            count and self._kinds[number].group == kind.group for number, count in enumerate(state[host])
        )

    def _need(self, host: int, counts: Counts) -> Floats:
        """Return, for each arrangement of the wanted builds, the least cost of the moves that a host with
        these instances needs before its builds fit.
        """
        key = host, counts
        if key not in self._needs:
            free = self._free_on(host, counts)
            there = [
                kind.amounts for kind, count in zip(self._kinds, counts, strict=True) for _ in range(count)
            ]
            costs = np.array([self._cost(load, free, there) for load in self._loads[host]])
            self._needs[key] = costs[self._numbers[:, host]]
        return self._needs[key]

    def _cost(self, load: Sequence[float], free: Sequence[float], there: Sequence[Sequence[float]]) -> float:
        fewest, size = 0, 0.0
        for column, (needed, has) in enumerate(zip(load, free, strict=True)):
            lack = needed - has
            if not needed or lack <= SLACK:
                continue
            size += lack / self._scale[column]
            released, number = 0.0, 0
            for amount in sorted([each[column] for each in there], reverse=True):
                released, number = released + amount, number + 1
                if released >= lack - SLACK:
                    break
            fewest = max(fewest, number)
        return MOVE * fewest + size

    def _free_on(self, host: int, counts: Counts) -> list[float]:
        key = host, counts
        if key not in self._free:
            used = self._held(counts)
            self._free[key] = [a - b for a, b in zip(self._room[host], used, strict=True)]
        return self._free[key]

    def _held(self, counts: Counts) -> list[float]:
        return [
            sum(
                kind.amounts[column] * count for kind, count in zip(self._kinds, counts, strict=True) if count
            )
            for column in range(len(self._scale))
        ]

    def _result(self, state: State, parents: dict[State, tuple[State, Step]]) -> ExactRoom:
        total, steps = self._total(state), list[Step]()
        while state in parents:
            state, step = parents[state]
            steps.append(step)
        moves, plans = self._named(steps[::-1]), []
        for number in np.flatnonzero(total <= total.min() + ROUNDING).tolist():
            targets = tuple([self._rows[host] for host in self._layouts[number]])
            lost = lost_by(self._cloud, moves, list(zip(targets, self._shapes, strict=True)))
            plans.append(ExactRoom(True, moves=moves, targets=targets, lost=lost))
            if self._cloud.usable is None:
                break
        return min(plans, key=lambda plan: plan.lost)

    def _named(self, steps: Sequence[Step]) -> tuple[PlannedMove, ...]:
        """Return the moves of instances for steps of kinds. Instances that have not moved yet move first."""
        there = [{host: list(some) for host, some in kind.there.items()} for kind in self._kinds]
        moves: list[PlannedMove] = []
        for number, source, host in steps:
            instance = there[number][source].pop(0)
            there[number].setdefault(host, []).append(instance)
            # It waits for the moves away from its destination, and for its own former move.
            waves = [
                move.wave + 1
                for move in moves
                if move.source == self._rows[host] or move.instance is instance
            ]
            moves.append(PlannedMove(instance, self._rows[source], self._rows[host], max(waves, default=0)))
        return tuple(moves)


def _least(total: Floats) -> float:
    """Return the least of the bounds of all layouts, without the error of adding and subtracting sizes."""
    least = float(total.min())
    return least if least > MOVE / 2 else 0.0


def _kinds(cloud: CloudState, rows: Sequence[int]) -> list[_Kind]:
    found: dict[object, _Kind] = {}
    for number, host in enumerate(rows):
        for each in cloud.instances.get(host, ()):
            forbidden = {*cloud.forbidden.get(each.build, ())}
            hosts = [at for at, row in enumerate(rows) if each.accepted[row] and row not in forbidden]
            key = each.amounts.tobytes(), tuple(hosts), each.lives, each.apart, each.shape
            if key not in found:
                size = cloud.packing.size(each.amounts)
                found[key] = _Kind(tuple(each.amounts.tolist()), size, each.lives, each.apart, hosts)
            found[key].there.setdefault(number, []).append(each)
    return list(found.values())


def _moved(state: State, step: Step) -> State:
    number, source, host = step
    after = list(state)
    after[source], after[host] = _changed(state[source], number, -1), _changed(state[host], number, 1)
    return tuple(after)


def _changed(counts: Counts, kind: int, by: int) -> Counts:
    return (*counts[:kind], counts[kind] + by, *counts[kind + 1 :])
