"""Labels of hosts by level on both databases: their sources, precedence, and what the index shows."""

from typing import Any

import pytest
from msgspec.structs import replace

from bus.aggregates import AggregateEditRequested, ChangeAggregate, MakeAggregate
from bus.domains import LabelEditRequested, LabelEditResult, LabelsEdited, LevelReserved
from bus.resources import FindProviders, OwnerEditRequested
from bus.vocabulary import Missing
from placement_worker import IndexedSource, Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_report

EAST = uid(1, "e")
HOST, OTHER = uid(1, "a"), uid(2, "a")


@pytest.fixture(autouse=True)
async def hosts(placement: Placement) -> None:
    await placement.reports.report_many([a_report(1), a_report(2)])


async def label(
    placement: Placement, *roots: str, unset: tuple[str, ...] = (), **labels: str
) -> LabelEditResult:
    order = LabelEditRequested(roots=roots or (HOST,), set=labels, unset=unset)
    return (await placement.reports.label(order)).result


async def reported(placement: Placement, sequence: int = 2, **fields: Any) -> None:
    [refusal] = await placement.reports.report_many([replace(a_report(1), sequence=sequence, **fields)])
    assert refusal is None


async def east(placement: Placement, **metadata: str) -> None:
    edit = MakeAggregate(aggregate=EAST, name="east", hosts=(HOST,), metadata=metadata)
    await placement.aggregates.edit(AggregateEditRequested(edit=edit))


async def labels_of(placement: Placement, root: str = HOST) -> dict[str, str]:
    """Return a host's labels as queries show them; fail if the index has other labels."""
    await placement.memory.fresh()
    query = FindProviders(ids=(root,), parts=("owner", "labels"))
    [provider] = (await placement.lookups.providers(query)).providers
    source = IndexedSource(placement.memory)
    position = source.position(root)
    shown = {}
    for level in placement.memory.index.labels:
        ids, names = source.labels(level)
        if position is not None and ids[position]:
            shown[level] = names[ids[position]]
    assert shown == provider.labels
    return {level: name for level, name in provider.labels.items() if level not in ("cell", "zone")}


async def test_setting_the_same_label_again_changes_nothing(placement: Placement) -> None:
    await label(placement, rack="r1")
    assert await label(placement, rack="r1") == LabelsEdited(changed=0, number=0)


async def test_labels_have_a_precedence(placement: Placement) -> None:
    await reported(placement, field_labels={"rack": "of a field", "row": "of a field"})
    assert (await labels_of(placement))["rack"] == "of a field"
    await east(placement, **{"topology:rack": "of an aggregate"})
    assert (await labels_of(placement))["rack"] == "of an aggregate"
    await reported(placement, 3, labels={"rack": "of an agent"}, field_labels={"row": "of a field"})
    assert (await labels_of(placement))["rack"] == "of an agent"
    await label(placement, rack="of an operator")
    assert await labels_of(placement) == {"rack": "of an operator", "row": "of a field"}


async def test_a_changed_label_changes_the_shape_so_that_older_choices_are_refused(
    placement: Placement,
) -> None:
    before = placement.memory.index.rows[HOST].shape
    await label(placement, rack="r1")
    await placement.memory.fresh()
    assert placement.memory.index.rows[HOST].shape == before + 1


async def test_metadata_of_an_aggregate_labels_its_hosts_whenever_it_changes(placement: Placement) -> None:
    await east(placement)
    assert await labels_of(placement) == {}
    for change, expected in (
        (ChangeAggregate(aggregate=EAST, set={"topology:row": "a"}), {"row": "a"}),
        (ChangeAggregate(aggregate=EAST, unset=("topology:row",)), {}),
    ):
        await placement.aggregates.edit(AggregateEditRequested(edit=change))
        assert await labels_of(placement) == expected


async def test_levels_that_every_host_has_cannot_be_labelled(placement: Placement) -> None:
    assert await label(placement, zone="north") == LevelReserved(level="zone")
    [refusal] = await placement.reports.report_many(
        [replace(a_report(1), sequence=9, labels={"host": "elsewhere"})]
    )
    assert refusal is not None and "labels" in str(refusal)


async def test_no_host_is_labelled_if_one_does_not_exist(placement: Placement) -> None:
    assert await label(placement, HOST, uid(99, "a"), rack="r1") == Missing(
        what="host", names=(uid(99, "a"),)
    )
    assert await labels_of(placement) == {}


async def test_no_host_is_labelled_if_one_is_in_another_cell_than_the_edit_names(
    placement: Placement,
) -> None:
    await placement.reports.give(OwnerEditRequested(root=OTHER, cell="c2"))
    order = LabelEditRequested(roots=(HOST, OTHER), set={"rack": "r1"}, cell="c1")
    assert (await placement.reports.label(order)).result == Missing(what="host", names=(OTHER,))
    assert await labels_of(placement) == {}
    edited = (await placement.reports.label(replace(order, roots=(HOST,)))).result
    assert isinstance(edited, LabelsEdited)
