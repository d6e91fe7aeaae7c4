"""Aggregates: properties, members, and refused edits."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from bus.aggregates import (
    ZONE,
    AggregateEdit,
    AggregateEditRequested,
    AggregatesFound,
    ChangeAggregate,
    DropAggregate,
    FindAggregates,
    HasHosts,
    MakeAggregate,
    TwoZones,
    ZoneInUse,
    refusal_reason,
)
from bus.reports import SHARES
from bus.resources import SetTraits
from bus.vocabulary import Missing, Taken
from placement_worker import Placement
from placement_worker.store import aggregates as stored
from placement_worker.store import changes
from tests.support.aggregates import EAST, FAST, WEST, done, has_hosts, host, make
from tests.support.ids import uid
from tests.support.placement_builders import (
    a_claim,
    a_placement,
    a_provider,
    a_report,
    an_order,
    keeps_its_index,
    on_hosts,
)
from tests.support.placement_calls import claim, edit, edit_aggregate, find_providers, report


async def members(placement: Placement, id_: str) -> set[str]:
    return {provider.id for provider in await find_providers(placement) if id_ in provider.aggregates}


async def found(placement: Placement, **query: Any) -> list[str]:
    answer = await placement.aggregates.find(FindAggregates(**query))
    return [aggregate.name for aggregate in answer.aggregates]


CHANGES: dict[str, tuple[dict[str, Any], dict[str, str], set[int]]] = {
    "set wins": ({"set": {"kind": "new"}, "unset": ("kind",)}, {"kind": "new"}, {1}),
    "all at once": (
        {"set": {"a": "b"}, "unset": ("kind",), "add": ("host-2", "host-3"), "remove": ("host-1",)},
        {"a": "b"},
        {2, 3},
    ),
}


@pytest.mark.parametrize("change, metadata, hosts", CHANGES.values(), ids=CHANGES.keys())
async def test_a_change_is_applied_once_if_delivered_twice(
    placement: Placement, change: dict[str, Any], metadata: dict[str, str], hosts: set[int]
) -> None:
    await has_hosts(placement)
    await make(placement, EAST, "east", "host-1", kind="old")
    one = ChangeAggregate(aggregate=EAST, **change)
    for is_new in (True, False):  # delivered twice
        result = await done(placement, one)
        assert (result.aggregate.name, result.aggregate.metadata) == ("east", metadata)
        assert bool(result.number) == is_new
        assert await members(placement, EAST) == {host(number) for number in hosts}


UNNAMED, EMPTY = uid(4, "c"), uid(5, "c")  # of the Placement API; `EMPTY` had a member
HOSTS = {EAST: 2, UNNAMED: 1}  # a card is no host
CONDITIONS: tuple[tuple[dict[str, Any], list[str]], ...] = (
    ({}, [EAST, WEST, FAST, UNNAMED]),
    ({"ids": (WEST, UNNAMED, EMPTY)}, [WEST, UNNAMED]),
    ({"name": "east"}, [EAST]),
    ({"key": "kind"}, [EAST, FAST]),
    ({"host": "host-1"}, [EAST, UNNAMED]),
    ({"host": host(1)}, [EAST, UNNAMED]),
    ({"host": "node-2"}, [EAST]),
    ({"host": "other"}, [EAST]),
    ({"host": "host-9"}, []),
    ({"host": "host-1", "ids": (WEST, UNNAMED)}, [UNNAMED]),
    ({"key": "kind", "after": EAST}, [FAST]),
    ({"limit": 4}, [EAST, WEST, FAST, UNNAMED]),
)


async def test_aggregates_are_found_by_each_condition(url: str, placement: Placement) -> None:
    card = a_provider(3, 1, aggregates=(UNNAMED, WEST))
    await report(placement, a_report(1, card, aggregates=(UNNAMED,)), a_report(4, aggregates=(EMPTY,)))
    await report(placement, replace(a_report(2, name="node-2"), host="other"), a_report(4, sequence=2))
    async with a_placement(url) as other:
        await make(placement, EAST, "east", "host-1", "other", kind="a")
        await make(placement, WEST, "west")
        await make(placement, FAST, "fast", kind="b")
        for condition, ids in CONDITIONS:
            answer = await other.aggregates.find(FindAggregates(**condition))
            assert [aggregate.id for aggregate in answer.aggregates] == ids, condition
            assert answer.hosts == {id_: count for id_, count in HOSTS.items() if id_ in ids}
            assert (answer.more, answer.seen) == (False, placement.memory.index.seen)
        assert (await other.aggregates.find(FindAggregates(limit=3))).more


async def test_a_page_of_aggregates_fits_into_a_message(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placement_worker.registries.PAGE_BYTES", 5000)
    for number in range(10):
        await make(placement, uid(number, "c"), f"n{number}", text="x" * 2000)
    after, pages = "", list[AggregatesFound]()
    while not pages or pages[-1].more:
        pages.append(await placement.aggregates.find(FindAggregates(after=after)))
        after = pages[-1].aggregates[-1].id
    assert [aggregate.name for page in pages for aggregate in page.aggregates] == [
        f"n{number}" for number in range(10)
    ]
    assert max(len(page.aggregates) for page in pages) == 3


async def test_one_of_two_concurrent_edits_that_put_a_host_into_two_zones_is_refused(
    url: str, placement: Placement
) -> None:
    async with a_placement(url) as other:
        for turn in range(4):
            number = turn + 1
            await report(placement, a_report(number))
            one, two = uid(2 * turn, "c"), uid(2 * turn + 1, "c")
            await make(placement, one, f"one-{turn}", *([f"host-{number}"] if turn % 2 else []))
            await make(placement, two, f"two-{turn}", f"host-{number}")
            zones = {one: {ZONE: "one"}, two: {ZONE: "two"}}
            results = await asyncio.gather(
                *(
                    edit_aggregate(
                        where, ChangeAggregate(aggregate=id_, set=zones[id_], add=(f"host-{number}",))
                    )
                    for where, id_ in ((placement, one), (other, two))
                )
            )
            assert sorted(type(result).__name__ for result in results) == ["AggregateEdited", "TwoZones"]
            for each in (placement, other):
                await each.memory.fresh()
        await keeps_its_index(other)


async def test_concurrent_edits_of_an_aggregate_and_reports_lose_nothing(
    url: str, placement: Placement
) -> None:
    await has_hosts(placement, 8)
    await make(placement, EAST, "east")
    async with a_placement(url) as other:

        async def reports(which: Placement) -> None:
            for sequence in range(2, 6):
                for number in range(1, 9):
                    await report(which, a_report(number, sequence=sequence, aggregates=(WEST,)))

        await asyncio.gather(
            *(
                done(which, ChangeAggregate(aggregate=EAST, add=(f"host-{number}",), set={f"k{number}": "1"}))
                for number, which in zip(range(1, 9), (placement, other) * 4, strict=True)
            ),
            reports(placement),
        )
        [aggregate] = (await other.aggregates.find(FindAggregates(ids=(EAST,)))).aggregates
        assert aggregate.metadata == {f"k{number}": "1" for number in range(1, 9)}
        assert await members(other, EAST) == {host(number) for number in range(1, 9)}
        assert await members(other, WEST) == {host(number) for number in range(1, 9)}
        await other.memory.fresh()
        await placement.memory.fresh()
        await keeps_its_index(other)


async def test_a_host_deleted_during_an_edit_is_reported_as_missing(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    await has_hosts(placement, 2)
    await make(placement, EAST, "east")
    named_hosts = stored.named_hosts

    async def stale(tx: Any, names: Any) -> Any:
        found = await named_hosts(tx, names)
        monkeypatch.setattr(stored, "named_hosts", named_hosts)
        return found | {"host-9": [host(9)]}

    monkeypatch.setattr(stored, "named_hosts", stale)
    one = ChangeAggregate(aggregate=EAST, add=("host-1", "host-9"))
    assert await edit_aggregate(placement, one) == Missing(what="host", names=("host-9",))
    assert await members(placement, EAST) == set()


async def test_an_edit_interrupted_by_a_crash_changes_nothing(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    await has_hosts(placement, 2)
    await make(placement, EAST, "east", "host-1", kind="old")
    one = ChangeAggregate(aggregate=EAST, set={"kind": "new"}, add=("host-2",), remove=("host-1",))
    announce = changes.announce

    async def dies(tx: Any, record: changes.CommitRecord, *given: Any) -> Any:
        announced = await announce(tx, record, *given)
        if record.aggregates:
            raise RuntimeError("killed")
        return announced

    seen = placement.memory.index.seen
    monkeypatch.setattr(changes, "announce", dies)
    with pytest.raises(RuntimeError):
        await placement.aggregates.edit(AggregateEditRequested(edit=one))
    assert placement.memory.index.seen == seen
    assert await members(placement, EAST) == {host(1)}
    monkeypatch.setattr(changes, "announce", announce)
    assert (await done(placement, one)).aggregate.metadata == {"kind": "new"}
    assert await members(placement, EAST) == {host(2)}


# Refused edits; `east` is a zone with host-1, which has an instance, and `west` is another zone

ANOTHER = uid(9, "c")
REFUSED: dict[str, tuple[AggregateEdit, Any]] = {
    "no such aggregate": (ChangeAggregate(aggregate=ANOTHER), Missing(what="aggregate", names=(ANOTHER,))),
    "none to drop": (DropAggregate(aggregate=ANOTHER), Missing(what="aggregate", names=(ANOTHER,))),
    "no such host": (ChangeAggregate(aggregate=WEST, add=("host-2", "a"), remove=("b", "a")),
        Missing(what="host", names=("a", "b"))),
    "name taken": (ChangeAggregate(aggregate=WEST, name="east"), Taken(what="name", value="east")),
    "name taken when made": (MakeAggregate(aggregate=ANOTHER, name="east"), Taken(what="name", value="east")),
    "id taken": (MakeAggregate(aggregate=EAST, name="other"), Taken(what="id", value="east")),
    "has hosts": (DropAggregate(aggregate=EAST), HasHosts(aggregate="east", hosts=("host-1",), count=1)),
    "two zones by a host": (ChangeAggregate(aggregate=WEST, add=("host-1",)),
        TwoZones(host="host-1", zone="w", other="e", by="aggregate east")),
    "two zones whatever is forced": (ChangeAggregate(aggregate=WEST, add=("host-1",), force=True),
        TwoZones(host="host-1", zone="w", other="e", by="aggregate east")),
    "two zones when made": (
        MakeAggregate(aggregate=ANOTHER, name="n", metadata={ZONE: "n"}, hosts=("host-1",)),
        TwoZones(host="host-1", zone="n", other="e", by="aggregate east"),
    ),
    "two zones by metadata": (ChangeAggregate(aggregate=FAST, set={ZONE: "f"}),
        TwoZones(host="host-1", zone="f", other="e", by="aggregate east")),
    "two zones by its owner": (ChangeAggregate(aggregate=WEST, add=("host-4",)),
        TwoZones(host="host-4", zone="w", other="own", by="what its owner reports")),
    "in use when it leaves": (ChangeAggregate(aggregate=EAST, remove=("host-1",)),
        ZoneInUse(hosts=("host-1",), count=1, zone="e", to="")),
    "in use when it comes": (ChangeAggregate(aggregate=WEST, add=("host-2", "host-3")),
        ZoneInUse(hosts=("host-3",), count=1, zone="", to="w")),
    "in use when the zone is renamed": (ChangeAggregate(aggregate=EAST, set={ZONE: "x"}),
        ZoneInUse(hosts=("host-1",), count=1, zone="e", to="x")),
    "in use when it is a zone no more": (ChangeAggregate(aggregate=EAST, unset=(ZONE,)),
        ZoneInUse(hosts=("host-1",), count=1, zone="e", to="")),
}  # fmt: skip


async def with_zones(placement: Placement) -> None:
    await has_hosts(placement)
    await report(placement, replace(a_report(4), zone="own"))
    await make(placement, EAST, "east", "host-1", availability_zone="e")
    await make(placement, WEST, "west", availability_zone="w")
    await make(placement, FAST, "fast", "host-1")
    for number in (1, 3):
        await claim(placement, an_order(a_claim(number, on_hosts(number))))


@pytest.mark.parametrize("edit, why", REFUSED.values(), ids=REFUSED.keys())
async def test_a_refused_edit_changes_nothing(placement: Placement, edit: AggregateEdit, why: Any) -> None:
    await with_zones(placement)
    before = placement.memory.index.seen, await found(placement)
    assert await edit_aggregate(placement, edit) == why
    assert refusal_reason(why)
    assert (placement.memory.index.seen, await found(placement)) == before
    await placement.memory.fresh()
    assert placement.memory.index.seen == before[0]


async def test_a_sharing_provider_may_be_in_the_zones_of_all_its_hosts(placement: Placement) -> None:
    await has_hosts(placement, 1)
    await edit(placement, SetTraits(provider=host(1), traits=(SHARES,)))
    await claim(placement, an_order(a_claim(1, on_hosts(1))))
    await make(placement, EAST, "east", "host-1", availability_zone="e")
    await make(placement, WEST, "west", "host-1", availability_zone="w")


DOUBTFUL = {
    "ram_weight_multiplier": ("much", "1e999", "nan", ""),
    "max_io_ops_per_host": ("8.5", "-1", "many"),
    "max_instances_per_host": ("٣",),
    ZONE: ("",),
    "filter_tenant_id2": ("", " , "),
    "trait:CUSTOM_A": ("forbidden",),
    "cpu_allocation_ratio": ("16.0",),
}
FINE = {
    "ram_weight_multiplier": "-1.5",
    "max_io_ops_per_host": "8",
    ZONE: "e",
    "filter_tenant_id": "p1,p2",
    "trait:CUSTOM_A": "required",
    "anything": "",
}


async def test_doubtful_metadata_is_stored_with_a_warning(placement: Placement) -> None:
    assert (await make(placement, EAST, "east", **FINE)).warnings == ()
    for key, values in DOUBTFUL.items():
        for value in values:
            reply = await done(placement, ChangeAggregate(aggregate=EAST, set={key: value}))
            assert len(reply.warnings) == 1 and reply.warnings[0].startswith(f"{key}: "), (key, value)
            assert reply.aggregate.metadata[key] == value
        silent = await done(placement, ChangeAggregate(aggregate=EAST, set={"other": ""}))
        assert silent.warnings == ()
        await done(placement, ChangeAggregate(aggregate=EAST, unset=(key,)))
