"""Ids of three aggregates, and functions that report hosts and make and edit aggregates."""

from typing import Any

from bus.aggregates import AggregateEdit, AggregateEdited, MakeAggregate
from placement_worker import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_report
from tests.support.placement_calls import edit_aggregate, report

EAST, WEST, FAST = uid(1, "c"), uid(2, "c"), uid(3, "c")


def host(number: int) -> str:
    return uid(number, "a")


async def has_hosts(placement: Placement, count: int = 3, **given: Any) -> None:
    reports = [a_report(number, **given) for number in range(1, count + 1)]
    assert await report(placement, *reports) == [""] * count


async def make(placement: Placement, id_: str, name: str, *hosts: str, **metadata: str) -> AggregateEdited:
    one = MakeAggregate(aggregate=id_, name=name, metadata=metadata, hosts=hosts)
    done = await edit_aggregate(placement, one)
    assert isinstance(done, AggregateEdited), done
    return done


async def done(placement: Placement, edit: AggregateEdit) -> AggregateEdited:
    result = await edit_aggregate(placement, edit)
    assert isinstance(result, AggregateEdited), result
    return result
