"""Reads the server groups that requests join, and applies their policies to the choice of hosts."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from bus.claims import ConsumerClaim
from bus.protocol import Ask
from bus.vocabulary import Id
from features.groups.core.joined_group import group_of_alternative, with_group
from features.groups.core.members import with_members
from features.groups.messages import FindGroups, GroupClaim, GroupPart, GroupsFound, ServerGroup, group_of
from scheduler_worker.extension import (
    Alternative,
    HeldAllocations,
    Narrowing,
    Order,
    Scope,
    prepared_in_parts,
)

if TYPE_CHECKING:
    from scheduler_worker.extension import Choosing


class JoinedGroups(Narrowing):
    """The narrowing for orders whose instances join a server group, named by the request."""

    def __init__(self, find: Ask[FindGroups, GroupsFound], allocations: HeldAllocations) -> None:
        self._find = find
        self._allocations = allocations

    def concerns(self, order: Order) -> bool:
        return group_of(order.request.parts) is not None

    async def prepare(self, orders: Sequence[Order], again: bool) -> Sequence[Order]:
        return orders if again else await prepared_in_parts(orders, self._prepared)

    async def _prepared(self, orders: Sequence[Order]) -> Sequence[Order]:
        ids = tuple(dict.fromkeys(id_ for order in orders if (id_ := group_of(order.request.parts))))
        groups = {group.id: group for group in (await self._find(FindGroups(ids=ids))).groups}
        roots = await self._allocations.hosts_of(
            [member for order in orders for member in _outside_members(order)]
        )
        return [self._with_group(order, groups, roots) for order in orders]

    def _with_group(self, order: Order, groups: dict[Id, ServerGroup], roots: dict[Id, str]) -> Order:
        request = order.request
        named = group_of(request.parts)
        group = groups.get(named or "")
        if group is None or group.project != request.project:
            why = f"hints.group: there is no server group {named} in this project"
            return order.with_invalid(why)
        return with_group(order, _with_other_members(order, group, roots))

    def scope(self, order: Order, alternatives: Sequence[Alternative]) -> Scope:
        return Scope(alone=True, key=group_of(order.request.parts))

    def add_parts(self, order: Order, claims: Sequence[ConsumerClaim]) -> Sequence[ConsumerClaim]:
        group = group_of(order.request.parts)
        assert group is not None, order
        part = GroupClaim(group=group)
        # an instance with allocations, which it keeps, is in its group already
        return [
            claim if claim.keep else structs.replace(claim, parts=claim.parts.having(part))
            for claim in claims
        ]

    def renew(self, alternative: Alternative, several: int, choosing: "Choosing") -> Alternative:
        return with_members(alternative, several, choosing)

    def watch(self, order: Order) -> tuple[object, frozenset[str]]:
        return watched(order)


def _with_other_members(order: Order, group: ServerGroup, on: Mapping[Id, str]) -> ServerGroup:
    """Return a server group with the members that count for an order; `on` has the hosts of instances."""
    outside, own = _outside_members(order), order.purpose.replaces
    if order.purpose.is_external:
        own = own.union(order.instances)
    if not outside and not own:
        return group
    known = {**{id_: (on[id_],) for id_ in outside if id_ in on}, **group.members}
    return structs.replace(
        group,
        members={id_: roots for id_, roots in known.items() if id_ not in own},
        left={id_: roots for id_, roots in group.left.items() if id_ not in own},
    )


def watched(order: Order) -> tuple[object, frozenset[str]]:
    """Return a value that changes with the server group of an order, and the hosts of its members."""
    group = group_of_alternative(order.preferred)
    if group is None or group.policy.startswith("soft"):
        return None, frozenset()
    members = {**group.members, **group.left}
    return group, frozenset([root for places in members.values() for root in places])


def _outside_members(order: Order) -> tuple[Id, ...]:
    """Return instances of another system that are members of the order's server group."""
    part = order.request.parts.get(GroupPart)
    return () if part is None else part.members
