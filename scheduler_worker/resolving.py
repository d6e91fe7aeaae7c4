"""Resolves the names in requests before the search: server groups and other instances.

The index knows usages but not consumers, so for waiting requests placement is asked again: when the request
begins to wait, when anything changed at a related host, and once a second. The request is woken if the
answer differs from the last one.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from bus.chunks import portions
from bus.claims import Held
from bus.errors import AnswerRefused
from bus.groups import FindGroups, ServerGroup
from bus.messages import BuildRequested
from bus.resources import FindAllocations
from bus.vocabulary import Id
from scheduler_worker.core.events import Begun
from scheduler_worker.core.held_claim import place_of
from scheduler_worker.core.order import Order
from scheduler_worker.dependencies import PlacementQueries
from scheduler_worker.releasing import Ending

Begins = tuple[Order, Begun]  # an order, and its first event

INSTANCES_ASKED = 1000  # at a time


@dataclass(frozen=True)
class Resolving:
    """Resolves all names of a batch in one query; a query that placement refuses is split in halves."""

    placement: PlacementQueries
    ending: Ending

    async def resolve(self, begun: Sequence[Begins]) -> list[Begins]:
        if not any(names_other_instances(order.request) for order, _ in begun):
            return list(begun)
        try:
            return await self._together(begun)
        except AnswerRefused as problem:
            if len(begun) == 1:
                order, _ = begun[0]
                return [(order, Begun(f"hints: placement cannot look up what they name: {problem}"))]
        middle = len(begun) // 2
        return [*await self.resolve(begun[:middle]), *await self.resolve(begun[middle:])]

    async def _together(self, begun: Sequence[Begins]) -> list[Begins]:
        asking = [order for order, event in begun if not event.refusal]
        groups = await self._groups(asking)
        on = await self._instances(asking)
        return [
            (order, event) if event.refusal else self._one(order, event, groups, on) for order, event in begun
        ]

    def _one(self, order: Order, event: Begun, groups: dict[Id, ServerGroup], on: dict[Id, str]) -> Begins:
        hints, request = order.request.hints, order.request
        if hints.group is not None:
            group = groups.get(hints.group)
            if group is None or group.project != request.project:
                return order, Begun(f"hints.group: there is no server group {hints.group} in this project")
            if order.move is not None:
                group = order.move.others_of(group)
            order = structs.replace(
                order,
                alternatives=tuple([replace(alternative, group=group) for alternative in order.alternatives]),
            )
        if hints.same_host or hints.different_host:
            same = frozenset(on[one] for one in hints.same_host if one in on) if hints.same_host else None
            different = frozenset(on[one] for one in hints.different_host if one in on)
            alternatives = [
                replace(alternative, same=same, different=different) for alternative in order.alternatives
            ]
            order = structs.replace(order, alternatives=tuple(alternatives))
        return order, event

    async def _groups(self, orders: Sequence[Order]) -> dict[Id, ServerGroup]:
        ids = tuple(dict.fromkeys(order.request.hints.group for order in orders if order.request.hints.group))
        if not ids:
            return {}
        return {group.id: group for group in (await self.placement.groups(FindGroups(ids=ids))).groups}

    async def _instances(self, orders: Sequence[Order]) -> dict[Id, str]:
        named = (
            hints.same_host + hints.different_host for hints in (order.request.hints for order in orders)
        )
        ids = tuple(dict.fromkeys(one for some in named for one in some))
        if not ids:
            return {}
        held = []
        for some in portions(ids, INSTANCES_ASKED):
            found = await self.placement.allocations(FindAllocations(consumers=some))
            for consumer in found.consumers:
                held.append(
                    (consumer.id, Held(generation=consumer.generation, allocations=consumer.allocations))
                )
        providers = await self.ending.look_up([one for _, one in held])
        places = [(instance, place_of(one, providers)) for instance, one in held]
        return {instance: place.root for instance, place in places if place is not None}


Resolves = Callable[[Sequence[BuildRequested]], Awaitable[Sequence[tuple[Order, Begun]]]]
AT_ONCE = 500  # kinds that are asked for in one question


class RelatedHosts:
    """The last answers, by equivalence class."""

    def __init__(self, resolve: Resolves) -> None:
        self._resolve = resolve
        self._told: dict[str, object] = {}
        self._roots: dict[str, frozenset[str]] = {}  # class → the hosts of its related instances
        self._around: frozenset[str] = frozenset()
        self.stirred = False  # the answers may be outdated
        self._asking = False

    @property
    def settled(self) -> bool:
        """Return whether the answer is final."""
        return not self.stirred and not self._asking

    def around(self, roots: Collection[str]) -> bool:
        return bool(self._around) and not self._around.isdisjoint(roots)

    async def moved(self, naming: Mapping[str, BuildRequested]) -> tuple[list[str], dict[str, str]]:
        """Return the classes whose related instances have moved, and those that can never fit, with the
        reason.
        """
        self.stirred, self._asking = False, True
        kinds = list(naming)
        changed: list[str] = []
        impossible: dict[str, str] = {}
        told: dict[str, object] = {}
        roots: dict[str, frozenset[str]] = {}
        try:
            for some in portions(kinds, AT_ONCE):
                answers = await self._resolve([naming[kind] for kind in some])
                for kind, (order, begun) in zip(some, answers, strict=True):
                    if begun.refusal:
                        impossible[kind] = begun.refusal
                        continue
                    told[kind], roots[kind] = _named(order)
                    if self._told.get(kind) != told[kind]:
                        changed.append(kind)
        except BaseException:
            self.stirred = True
            raise
        finally:
            self._asking = False
        self._told, self._roots = told, roots
        self._around = frozenset[str]().union(*roots.values())
        return changed, impossible


def names_other_instances(request: BuildRequested) -> bool:
    hints = request.hints
    return bool(hints.group or hints.same_host or hints.different_host)


def _named(order: Order) -> tuple[object, frozenset[str]]:
    alternative = order.alternatives[0]
    group = alternative.group
    if group is not None and group.policy.startswith("soft"):
        group = None
    members = {**group.members, **group.left} if group is not None else {}
    roots = {root for places in members.values() for root in places}
    return (group, alternative.same, alternative.different), frozenset(
        roots | (alternative.same or set()) | alternative.different
    )
