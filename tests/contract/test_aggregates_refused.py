"""Aggregates: what cannot be done to them, the zones of hosts above all; and what is doubtful."""

from typing import Any

import pytest
from msgspec.structs import replace

from bus.aggregates import (
    ZONE,
    AggregateEdit,
    ChangeAggregate,
    DropAggregate,
    HasHosts,
    MakeAggregate,
    TwoZones,
    ZoneInUse,
    refusal_reason,
)
from bus.resources import SetAggregates, SetTraits
from bus.vocabulary import Missing, Taken
from placement_worker import Placement
from placement_worker.core.row_table import SHARES
from tests.support.aggregates import EAST, FAST, WEST, done, found, has_hosts, host, make, members
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_report, an_order, on_hosts
from tests.support.placement_calls import claim, edit, edit_aggregate, report

# Why not: with `east` a zone of host-1, `west` a zone, and an instance on host-1

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


async def test_a_host_the_api_put_into_two_zones_can_be_taken_out_of_one(placement: Placement) -> None:
    await has_hosts(placement, 1)
    await make(placement, EAST, "east", availability_zone="e")
    await make(placement, WEST, "west", availability_zone="w")
    await edit(placement, SetAggregates(provider=host(1), aggregates=(EAST, WEST)))
    await make(placement, FAST, "fast", "host-1")  # which makes it no worse
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
            said = await done(placement, ChangeAggregate(aggregate=EAST, set={key: value}))
            assert len(said.warnings) == 1 and said.warnings[0].startswith(f"{key}: "), (key, value)
            assert said.aggregate.metadata[key] == value
        silent = await done(placement, ChangeAggregate(aggregate=EAST, set={"other": ""}))
        assert silent.warnings == ()
        await done(placement, ChangeAggregate(aggregate=EAST, unset=(key,)))
