"""Searches all sequences of moves for the best plan that makes room, breadth-first: slow, and simple."""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from bus.candidates import Floats
from features.planning.core.make_room import RoomPlan
from features.planning.core.moved_cloud import CloudState, MovableInstance, PlannedMove
from features.planning.core.room_demand import RoomDemand

Cost = tuple[int, float, int]  # moves, their total size, stopped instances
Places = tuple[int, ...]  # of each instance


def permits(demand: RoomDemand, hosts: Sequence[int]) -> bool:
    """Return whether builds on these hosts, in the sequence of the demand's parts, keep its constraints."""
    builds = [part for part in demand.parts for _ in range(part.count)]
    if not all(part.accepted[host] for part, host in zip(builds, hosts, strict=True)):
        return False
    if demand.packed is not None and len({0, *demand.packed[list(hosts)].tolist()}) != 2:
        return False
    if demand.packed is not None and 0 in demand.packed[list(hosts)]:
        return False
    for limit in demand.limits:
        domains = limit.domains[list(hosts)].tolist()
        if 0 in domains or any(
            domains.count(domain) + limit.there.get(domain, 0) > limit.most for domain in domains
        ):
            return False
    return True


class SlowRoom:
    def __init__(self, cloud: CloudState, demand: RoomDemand) -> None:
        self.cloud, self.demand = cloud, demand
        self.guests = [(each, host) for host, some in cloud.instances.items() for each in some]
        self.scale = cloud.packing.whole.max(axis=0)
        builds = [part for part in demand.parts for _ in range(part.count)]
        loads = []
        for hosts in product(range(len(cloud.packing)), repeat=len(builds)):
            if permits(demand, hosts):
                load = np.zeros_like(cloud.packing.free)
                for part, host in zip(builds, hosts, strict=True):
                    load[host] += part.amounts
                loads.append(load)
        self.loads = np.array(loads).reshape(-1, *cloud.packing.free.shape)

    def free(self, places: Places) -> Floats:
        free = self.cloud.packing.free.copy()
        for (each, first), now in zip(self.guests, places, strict=True):
            free[first] += each.amounts
            free[now] -= each.amounts
        return free

    def may_move(self, at: int, places: Places) -> Iterator[int]:
        """Yield the hosts to which an instance may move: those that accept it, have the capacity while it
        holds both places, and have no other member of its anti-affinity group.
        """
        each, free = self.guests[at][0], self.free(places)
        for host in range(len(free)):
            members = [
                other
                for (other, _), place in zip(self.guests, places, strict=True)
                if place == host and other.apart == each.apart and other.apart is not None
            ]
            refused = host in self.cloud.forbidden.get(each.build, ())
            fits = all(has >= needs for has, needs in zip(free[host], each.amounts, strict=True) if needs)
            if fits and host != places[at] and each.accepted[host] and not members and not refused:
                yield host

    def fits(self, places: Places) -> bool:
        is_free = (self.free(places) >= self.loads) | (self.loads == 0)
        return bool(is_free.all(axis=(1, 2)).any())

    def least(self, most: int) -> Cost | None:
        """Return the cost of the best plan of at most `most` moves; None if there is none."""
        begin = tuple(host for _, host in self.guests)
        seen, level = {self._alike(begin)}, {begin: (0.0, 0)}
        for moves in range(most + 1):
            if fitting := [cost for places, cost in level.items() if self.fits(places)]:
                return min((moves, round(size, 9), stopped) for size, stopped in fitting)
            after = dict[tuple[object, ...], tuple[tuple[float, int], Places]]()
            for places, (size, stopped) in level.items() if moves < most else ():
                for at, (each, _) in enumerate(self.guests):
                    cost = size + float((each.amounts / self.scale).sum()), stopped + (not each.lives)
                    for host in self.may_move(at, places):
                        moved = (*places[:at], host, *places[at + 1 :])
                        alike = self._alike(moved)
                        if alike not in seen and (alike not in after or cost < after[alike][0]):
                            after[alike] = cost, moved
            seen.update(after)
            level = {places: cost for cost, places in after.values()}
        return None

    def _alike(self, places: Places) -> tuple[object, ...]:
        """Return a key that is equal if instances that differ only by their ids have changed places."""
        kinds = [
            (each.amounts.tobytes(), each.accepted.tobytes(), each.lives, each.apart or "",
             tuple(self.cloud.forbidden.get(each.build, ())), host)
            for (each, _), host in zip(self.guests, places, strict=True)
        ]  # fmt: skip
        return tuple(sorted(kinds))


def carried_out(slow: SlowRoom, plan: RoomPlan) -> None:
    """Fail if a move of a plan is not possible when its wave begins, in whatever sequence the moves of one
    wave are made; or if the builds do not fit afterwards, or break a constraint.
    """
    by_build = {each.build: at for at, (each, _) in enumerate(slow.guests)}
    places = tuple(host for _, host in slow.guests)
    for wave in sorted({move.wave for move in plan.moves}):
        started = [move for move in plan.moves if move.wave == wave]
        assert len({move.instance.build for move in started}) == len(started)
        _fits_together(slow, places, started)
        for move in started:
            at = by_build[move.instance.build]
            assert places[at] == move.source and move.destination in slow.may_move(at, places)
            places = (*places[:at], move.destination, *places[at + 1 :])
    free = slow.free(places)
    builds = [part for part in slow.demand.parts for _ in range(part.count)]
    for part, host in zip(builds, plan.targets, strict=True):
        free[host] -= part.amounts
    assert (free >= -1e-9).all() and permits(slow.demand, plan.targets)


def _fits_together(slow: SlowRoom, places: Places, moves: Sequence[PlannedMove]) -> None:
    free = slow.free(places)
    for move in moves:
        free[move.destination] -= move.instance.amounts
    assert (free >= 0).all()


def guests_of(cloud: CloudState) -> list[MovableInstance]:
    return [each for some in cloud.instances.values() for each in some]
