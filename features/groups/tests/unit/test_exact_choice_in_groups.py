"""The host chosen for a member of a server group equals the best host of a slow evaluation of all hosts."""

from collections import Counter
from random import Random

import pytest

from features.groups.core.joined_group import JoinedGroup, group_of_alternative, members_on
from features.groups.messages import ServerGroup
from features.groups.tests.support.orders_in_groups import in_group
from scheduler_worker.core.extension import Alternative
from scheduler_worker.extension import Order
from tests.support.exact_choice import (
    MORE_BATCHES,
    RULES,
    WEIGHERS,
    Batches,
    PlainBatch,
    PlainRoom,
    a_kind,
    in_soak,
)
from tests.support.ids import uid
from tests.support.ranking_builders import FLAVORS, Hall
from tests.support.scheduler_builders import a_request


class BatchInGroups(PlainBatch):
    def __init__(self, hall: Hall, room: PlainRoom) -> None:
        super().__init__(hall, room)
        self.joined: dict[str, dict[str, str]] = {}  # group → member → root

    def is_alone(self, order: Order) -> bool:
        return group_of_alternative(order.alternative) is not None

    def starts_together(self, alternative: Alternative) -> bool:
        heeded = any(rule.name == "server_group_affinity" for rule in self.hall.policy.rules)
        group = group_of_alternative(alternative)
        is_hard = group is not None and group.policy == "affinity"
        return heeded and is_hard and not members_on(alternative)

    def seen(self, alternative: Alternative) -> Alternative:
        group = group_of_alternative(alternative)
        if group is None:
            return alternative
        there = [*group.members.values(), *((root,) for root in self.joined.get(group.id, {}).values())]
        if group.policy == "anti-affinity":
            there += group.left.values()
        return alternative.with_part(JoinedGroup(group, Counter(root for roots in there for root in roots)))

    def took(self, order: Order, instance: str, root: str) -> None:
        if (group := group_of_alternative(order.alternative)) is not None:
            self.joined.setdefault(group.id, {})[instance] = root

    def released(self, order: Order, instance: str) -> None:
        if (group := group_of_alternative(order.alternative)) is not None:
            del self.joined[group.id][instance]


BATCHES_IN_GROUPS = Batches(
    (*RULES, "server_group_anti_affinity", "server_group_affinity"),
    (*WEIGHERS, "soft_affinity", "soft_anti_affinity"),
    BatchInGroups,
)


def some_orders(chance: Random, hall: Hall) -> list[Order]:
    roots = [host.uuid for host in hall.source.hosts()]
    groups = [
        ServerGroup(
            id=uid(position, "9"),
            name=f"g{position}",
            policy=chance.choice(("affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity")),
            max_per_host=chance.choice((1, 1, 2)),
            members={
                uid(position * 10 + n, "f"): (chance.choice(roots),)
                for n in range(chance.choice((0, 0, 1, 2)))
            },
            left={uid(position * 10, "d"): (chance.choice(roots),)} if chance.random() < 0.2 else {},
        )
        for position in range(2)
    ]
    orders, number = list[Order](), 0
    for _ in range(chance.choice((1, 2, 3))):
        kind = a_kind(chance)
        group = chance.choice(groups) if chance.random() < 0.5 else None
        for _ in range(chance.choice((1, 2, 4))):
            number += 1
            several = chance.choice((1, 1, 2, 5))
            request = a_request(number, instances=several, at_least=chance.choice((0, 0, 1)), **kind)
            orders.append(hall.order(request) if group is None else in_group(hall, request, group))
    if chance.random() < 0.5:
        chance.shuffle(orders)
    return orders


def orders_that_start_groups(chance: Random, hall: Hall) -> list[Order]:
    orders = list[Order]()
    for number in range(chance.choice((1, 2, 3))):
        request = a_request(
            number,
            instances=chance.choice((2, 3, 5)),
            at_least=chance.choice((0, 0, 2)),
            flavor=chance.choice(FLAVORS),
        )
        group = ServerGroup(id=uid(number, "9"), name=f"g{number}", policy="affinity")
        orders.append(in_group(hall, request, group))
    return orders


@pytest.mark.parametrize("seeds", [range(1, 20), *in_soak(20, MORE_BATCHES, 598)], ids=str)
def test_every_choice_of_a_batch_is_the_best_after_the_earlier_ones(seeds: range) -> None:
    assert min(BATCHES_IN_GROUPS.check(seeds, some_orders)) > len(seeds)


@pytest.mark.parametrize("seeds", [range(15), *in_soak(15, MORE_BATCHES // 4, 297)], ids=str)
def test_a_new_affinity_group_gets_the_best_host_with_capacity_for_all(seeds: range) -> None:
    given, none = BATCHES_IN_GROUPS.check(seeds, orders_that_start_groups)
    assert given > len(seeds) and none > len(seeds) // 2
