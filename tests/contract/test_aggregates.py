"""Aggregates: properties, members, and refused edits."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from bus.aggregates import (
    ZONE,
    Aggregate,
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
from bus.resources import MakeProvider, SetAggregates, SetTraits
from bus.vocabulary import Missing, Taken
from placement_worker import Placement
from placement_worker.store import aggregates as stored
from placement_worker.store import changes
from tests.support.aggregates import EAST, FAST, WEST, done, has_hosts, host, make
from tests.support.ids import uid
from tests.support.placement_builders import (
    a_claim,
    a_placement,
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


# Creation and members


async def test_an_aggregate_is_created_with_hosts_by_name_or_uuid_and_published(
    placement: Placement, url: str
) -> None:
    await has_hosts(placement)
    async with a_placement(url) as other:
        made = await make(placement, EAST, "east", "host-1", host(2), availability_zone="e")
        assert (made.made, made.added) == (True, (host(1), host(2)))
        assert made.aggregate == Aggregate(id=EAST, name="east", metadata={ZONE: "e"})
        assert await members(placement, EAST) == {host(1), host(2)}
        await other.memory.fresh()
        for one in (placement, other):
            assert one.memory.index.aggregate_facts == {EAST: made.aggregate}
            assert one.memory.index.rows[host(1)].aggregates == (EAST,)
        answer = await other.aggregates.find(FindAggregates())
        assert (answer.aggregates, answer.hosts, answer.seen) == ((made.aggregate,), {EAST: 2}, made.number)


async def test_a_host_is_found_by_its_host_name_and_by_its_provider_name(placement: Placement) -> None:
    await report(placement, replace(a_report(1, name="hypervisor-1.example"), host="compute-1"))
    await edit(placement, MakeProvider(provider=host(9), name="storage"))
    made = await make(placement, FAST, "fast", "compute-1", "hypervisor-1.example", "storage")
    assert made.added == (host(1), host(9))
    taken_out = await done(placement, ChangeAggregate(aggregate=FAST, remove=("hypervisor-1.example",)))
    assert taken_out.removed == (host(1),)


async def test_an_aggregate_created_through_the_api_is_listed_and_can_be_named(placement: Placement) -> None:
    await has_hosts(placement, 1)
    await edit(placement, SetAggregates(provider=host(1), aggregates=(EAST,)))
    assert await found(placement) == [""]
    assert (await make(placement, EAST, "east", kind="fast")).aggregate.metadata == {"kind": "fast"}
    assert await found(placement) == ["east"]
    assert await members(placement, EAST) == {host(1)}
    await edit(placement, SetAggregates(provider=host(1), aggregates=(WEST,)))
    described = await done(placement, ChangeAggregate(aggregate=WEST, set={"kind": "slow"}))
    assert described.aggregate == Aggregate(id=WEST, metadata={"kind": "slow"})


CHANGES: dict[str, tuple[dict[str, Any], dict[str, str], set[int]]] = {
    "set": ({"set": {"kind": "new", "more": "1"}}, {"kind": "new", "more": "1"}, {1}),
    "unset": ({"unset": ("kind", "never")}, {}, {1}),
    "set wins": ({"set": {"kind": "new"}, "unset": ("kind",)}, {"kind": "new"}, {1}),
    "add": ({"add": ("host-2",)}, {"kind": "old"}, {1, 2}),
    "remove": ({"remove": ("host-1",)}, {"kind": "old"}, set()),
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


# Repeated deliveries


async def test_creating_an_aggregate_again_keeps_later_changes(placement: Placement) -> None:
    await has_hosts(placement, 1)
    await make(placement, EAST, "east", "host-1", kind="old")
    since = await done(placement, ChangeAggregate(aggregate=EAST, set={"kind": "new"}, remove=("host-1",)))
    again = await make(placement, EAST, "east", "host-1", kind="old")
    assert (again.made, again.number, again.aggregate) == (False, 0, since.aggregate)
    assert await members(placement, EAST) == set()


async def test_an_aggregate_dropped_twice_is_dropped_once(placement: Placement) -> None:
    await make(placement, EAST, "east", kind="x")
    dropped = await done(placement, DropAggregate(aggregate=EAST))
    assert dropped.aggregate.gone and dropped.number
    again = await done(placement, DropAggregate(aggregate=EAST))
    assert again.aggregate.gone and not again.number
    assert await found(placement) == []
    assert placement.memory.index.aggregate_facts == {}
    made = await make(placement, EAST, "east")  # the id can be used again, without the former members
    assert made.aggregate.metadata == {}


async def test_reports_do_not_remove_members_that_an_operator_added(placement: Placement) -> None:
    """An operator added the host to EAST, its agent reports WEST, and both added it to FAST."""
    await report(placement, a_report(1, aggregates=(WEST, FAST)))
    await make(placement, EAST, "east", "host-1")
    await make(placement, FAST, "fast", "host-1")
    for sequence, theirs, then in (
        (2, (WEST, FAST, EAST), {EAST, WEST, FAST}),
        (3, (), {EAST, FAST}),
        (4, (WEST,), {EAST, WEST, FAST}),
    ):
        await report(placement, a_report(1, sequence=sequence, aggregates=theirs))
        assert set(placement.memory.index.rows[host(1)].aggregates) == then


async def test_a_member_that_the_owner_reports_is_added_again_with_a_warning(placement: Placement) -> None:
    await report(placement, a_report(1, aggregates=(EAST,)))
    out = await done(placement, ChangeAggregate(aggregate=EAST, remove=("host-1",)))
    assert out.warnings == ("host-1: its owner reports it in this aggregate, and will put it back",)
    assert await members(placement, EAST) == set()
    await report(placement, a_report(1, sequence=2, aggregates=(EAST,)))
    assert await members(placement, EAST) == {host(1)}


# Queries


FOUND: dict[str, tuple[dict[str, Any], list[str]]] = {
    "all": ({}, ["east", "west", "fast"]),
    "by id": ({"ids": (WEST, EAST, uid(9, "c"))}, ["east", "west"]),
    "by name": ({"name": "west"}, ["west"]),
    "of a host": ({"host": "host-2"}, ["east", "west"]),
    "with a key": ({"key": ZONE}, ["east", "fast"]),
    "all demands": ({"host": "host-2", "key": ZONE, "ids": (EAST, FAST)}, ["east"]),
    "behind one": ({"after": EAST}, ["west", "fast"]),
}


@pytest.mark.parametrize("query, names", FOUND.values(), ids=FOUND.keys())
async def test_queries_find_aggregates_page_by_page(
    placement: Placement, query: dict[str, Any], names: list[str]
) -> None:
    await has_hosts(placement)
    await make(placement, EAST, "east", "host-1", "host-2", availability_zone="e")
    await make(placement, WEST, "west", "host-2", other="x")
    await make(placement, FAST, "fast", availability_zone="f")
    assert await found(placement, **query) == names
    paged: list[str] = []
    after, more = query.get("after", ""), True
    while more:
        page = await placement.aggregates.find(FindAggregates(**{**query, "after": after, "limit": 1}))
        paged += [aggregate.name for aggregate in page.aggregates]
        more = page.more
        after = page.aggregates[-1].id if page.aggregates else after
    assert paged == names


async def test_a_page_of_aggregates_fits_into_a_message(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placement_worker.registries.PAGE_BYTES", 5000)
    monkeypatch.setattr("placement_worker.registries.ROWS", 4)
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
    announce = changes.announce_facts

    async def dies(*given: Any) -> Any:
        await announce(*given)
        raise RuntimeError("killed")

    seen = placement.memory.index.seen
    monkeypatch.setattr(changes, "announce_facts", dies)
    with pytest.raises(RuntimeError):
        await placement.aggregates.edit(AggregateEditRequested(edit=one))
    assert placement.memory.index.seen == seen
    assert await members(placement, EAST) == {host(1)}
    monkeypatch.setattr(changes, "announce_facts", announce)
    assert (await done(placement, one)).aggregate.metadata == {"kind": "new"}
    assert await members(placement, EAST) == {host(2)}


async def test_aggregate_changes_received_in_any_order_leave_the_latest_state(
    url: str, placement: Placement
) -> None:
    async with a_placement(url) as other:
        await make(placement, EAST, "east", kind="1")
        for value in ("2", "3"):
            await done(placement, ChangeAggregate(aggregate=EAST, set={"kind": value}))
        await make(placement, WEST, "west")
        await done(placement, DropAggregate(aggregate=WEST))
        async with placement.database.read() as tx:
            log = (await changes.since(tx, 0, 100)).changes
        assert all(message.aggregates and not message.changes for message in log)
        for message in reversed(log):
            await other.memory.handle_many([message])
        assert other.memory.index.aggregate_facts == {
            EAST: Aggregate(id=EAST, name="east", metadata={"kind": "3"})
        }
        assert not other.memory.index._described_at


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


ALLOWED: dict[str, AggregateEdit] = {
    "forced out": ChangeAggregate(aggregate=EAST, remove=("host-1",), force=True),
    "forced in": ChangeAggregate(aggregate=WEST, add=("host-3",), force=True),
    "forced into another zone in one edit": ChangeAggregate(aggregate=EAST, set={ZONE: "x"}, force=True),
    "free hosts come and go": ChangeAggregate(aggregate=WEST, add=("host-2",)),
    "no zone moves": ChangeAggregate(aggregate=FAST, remove=("host-1",), add=("host-3",)),
    "the same zone twice": ChangeAggregate(aggregate=FAST, set={ZONE: "e"}),
    "its owner's zone": MakeAggregate(
        aggregate=ANOTHER, name="own", metadata={ZONE: "own"}, hosts=("host-4",)
    ),
    "dropped with its hosts": DropAggregate(aggregate=EAST, force=True),
    "a zone of nobody": ChangeAggregate(aggregate=WEST, set={ZONE: "e"}),
}


@pytest.mark.parametrize("edit", ALLOWED.values(), ids=ALLOWED.keys())
async def test_permitted_edits_of_zones(placement: Placement, edit: AggregateEdit) -> None:
    await with_zones(placement)
    assert (await done(placement, edit)).number


async def test_a_host_in_two_zones_can_be_removed_from_one_of_them(placement: Placement) -> None:
    await has_hosts(placement, 1)
    await make(placement, EAST, "east", availability_zone="e")
    await make(placement, WEST, "west", availability_zone="w")
    await edit(placement, SetAggregates(provider=host(1), aggregates=(EAST, WEST)))
    await make(placement, FAST, "fast", "host-1")  # not a further zone
    await done(placement, ChangeAggregate(aggregate=EAST, remove=("host-1",)))
    assert await members(placement, WEST) == {host(1)}


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
