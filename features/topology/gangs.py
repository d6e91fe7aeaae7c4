"""The narrowing for orders whose instances have roles or a topology."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from bus.claims import ConsumerClaim
from bus.protocol import Ask
from bus.queries import Candidate
from bus.vocabulary import Id
from features.groups.core.joined_group import with_group
from features.groups.messages import FindGroups, GroupClaim, GroupsFound
from features.groups.server_groups import watched
from features.topology.core.gang_choice import GangChoice, is_gang
from features.topology.messages import topology_of
from features.topology.requests import own_group, own_group_id
from scheduler_worker.extension import PLAIN, Alternative, Chosen, Narrowing, Order, Scope

if TYPE_CHECKING:
    from scheduler_worker.extension import Choosing


class Gangs(Narrowing):
    """Chooses the instances of an order together. The claims of a request with a topology make a server
    group, which the instances join.
    """

    def __init__(self, find: Ask[FindGroups, GroupsFound]) -> None:
        self._find = find

    def concerns(self, order: Order) -> bool:
        return is_gang(order)

    async def prepare(self, orders: Sequence[Order], again: bool) -> Sequence[Order]:
        """Return orders with the server groups that they make, if placement has these groups already."""
        ids = tuple(
            [own_group_id(order.request) for order in orders if topology_of(order.request.parts).levels]
        )
        if again or not ids:
            return orders
        found = {group.id: group for group in (await self._find(FindGroups(ids=ids))).groups}
        return [
            with_group(order, own_group(order.request, found.get(own_group_id(order.request))))
            if topology_of(order.request.parts).levels
            else order
            for order in orders
        ]

    def scope(self, order: Order, alternatives: Sequence[Alternative]) -> Scope:
        key = own_group_id(order.request) if topology_of(order.request.parts).levels else None
        return Scope(alone=True, key=key, jointly=self)

    def add_parts(self, order: Order, claims: Sequence[ConsumerClaim]) -> Sequence[ConsumerClaim]:
        topology = topology_of(order.request.parts)
        if not topology.levels:
            return claims
        part = GroupClaim(group=own_group_id(order.request), topology=topology)
        return [structs.replace(claim, parts=claim.parts.having(part)) for claim in claims]

    def watch(self, order: Order) -> tuple[object, frozenset[str]]:
        return watched(order) if topology_of(order.request.parts).levels else (None, frozenset())

    def choose(self, choosing: "Choosing", order: Order, scope: Scope) -> Chosen:
        return GangChoice(choosing, order, replace(scope, held={})).choose()

    def alternates(self, choosing: "Choosing", order: Order) -> Mapping[Id, tuple[Candidate, ...]]:
        gang, found = GangChoice(choosing, order, PLAIN), dict[Id, tuple[Candidate, ...]]()
        for settled in order.settled:
            if settled.lacking and settled.alternative is not None:
                with choosing.counting_claim(order, settled):
                    found[settled.instance] = gang.alternates(
                        settled.instance, settled.alternative, settled.lacking, settled.cell
                    )
        return found
