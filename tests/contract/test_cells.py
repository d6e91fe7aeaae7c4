"""The registry of cells: registration, disabling, publication, removal."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from bus.cells import CellEdited, CellInUse, DropCell, FindCells, RegisterCell, RegisteredCell
from bus.claims import Claimed
from bus.vocabulary import Missing
from placement_worker import Placement
from placement_worker.store import changes
from tests.support.ids import uid
from tests.support.placement_builders import (
    a_claim,
    a_placement,
    a_release,
    a_report,
    an_order,
    keeps_its_index,
    looking_for,
    on_hosts,
)
from tests.support.placement_calls import claim, edit_cell, find_providers, report


async def done(placement: Placement, cell: RegisterCell | DropCell) -> CellEdited:
    result = await edit_cell(placement, cell)
    assert isinstance(result, CellEdited), result
    return result


async def has_hosts(placement: Placement, cell: str, *hosts: int, sequence: int = 1) -> None:
    reports = [a_report(host, cell=cell, sequence=sequence) for host in hosts]
    assert await report(placement, *reports) == ["" for _ in hosts]


async def boots(placement: Placement, consumer: int, host: int) -> int:
    [result] = await claim(placement, an_order(a_claim(consumer, on_hosts(host))))
    assert isinstance(result, Claimed)
    return result.generation


async def there(placement: Placement) -> dict[str, tuple[bool, int, int]]:
    """Cell → is it enabled, its hosts, and its instances."""
    found = await placement.cells.find(FindCells())
    return {
        cell.name: (cell.enabled, found.hosts.get(cell.name, 0), found.instances.get(cell.name, 0))
        for cell in found.cells
    }


async def open_hosts(placement: Placement, *closed: str) -> set[str]:
    query = replace(looking_for({"VCPU": 1}), not_cells=closed)
    found = await placement.find_candidates(query)
    return {candidate.host for candidate in found.candidates}


async def test_what_is_said_of_a_cell_is_known_to_everybody_and_said_twice_it_is_one(
    url: str, placement: Placement
) -> None:
    async with a_placement(url) as other:
        made = await done(placement, RegisterCell(cell="c1", note="rack 7"))
        assert made.cell == RegisteredCell(name="c1", note="rack 7") and made.number
        shut = await done(other, RegisterCell(cell="c1", enabled=False))
        assert shut.cell == RegisteredCell(name="c1", enabled=False, note="rack 7")
        for one in (placement, other):
            again = await done(one, RegisterCell(cell="c1", enabled=False, note="rack 7"))
            assert (again.cell, again.number) == (shut.cell, 0)
            await one.memory.fresh()
            assert one.memory.index.cell_facts == {"c1": shut.cell}
            assert one.memory.index.seen == shut.number
            await keeps_its_index(one)


async def test_a_cell_that_nobody_registered_is_there_with_its_hosts(placement: Placement) -> None:
    await has_hosts(placement, "c1", 1, 2)
    await has_hosts(placement, "c2", 3)
    await boots(placement, 1, 1)
    await done(placement, RegisterCell(cell="c2", enabled=False))
    await done(placement, RegisterCell(cell="c3"))
    assert await there(placement) == {"c1": (True, 2, 1), "c2": (False, 1, 0), "c3": (True, 0, 0)}
    registered = await placement.cells.find(FindCells(counted=False))
    assert [cell.name for cell in registered.cells] == ["c2", "c3"] and not registered.hosts


async def test_hosts_of_cells_that_are_ruled_out_are_no_candidates(placement: Placement) -> None:
    await has_hosts(placement, "c1", 1)
    await has_hosts(placement, "c2", 2)
    assert await open_hosts(placement) == {"host-1", "host-2"}
    assert await open_hosts(placement, "c1", "c9") == {"host-2"}
    assert await open_hosts(placement, "c1", "c2") == set()


async def test_edits_at_once_lose_nothing_that_one_of_them_said(url: str, placement: Placement) -> None:
    async with a_placement(url) as other:
        edits = [RegisterCell(cell="c1", enabled=False), RegisterCell(cell="c1", note="new")] * 4
        await asyncio.gather(
            *(done(which, cell) for which, cell in zip((placement, other) * 4, edits, strict=True))
        )
        await placement.memory.fresh()
        said = RegisteredCell(name="c1", enabled=False, note="new")
        assert placement.memory.index.cell_facts == {"c1": said}


async def test_the_log_told_in_any_order_leaves_the_last_that_was_said(
    url: str, placement: Placement
) -> None:
    async with a_placement(url) as other:
        for enabled in (False, True, False):
            await done(placement, RegisterCell(cell="c1", enabled=enabled))
        await done(placement, RegisterCell(cell="c2"))
        await done(placement, DropCell(cell="c2"))
        async with placement.database.read() as tx:
            log = await changes.after(tx, 0, 100)
        assert all(message.cells and not message.changes for message in log)
        for message in reversed(log):
            await other.memory.handle_many([message])
        assert other.memory.index.cell_facts == {"c1": RegisteredCell(name="c1", enabled=False)}
        assert not other.memory.index._described_at


# The end of one


async def test_a_dropped_cell_goes_with_its_hosts_and_nobody_elses(placement: Placement) -> None:
    await has_hosts(placement, "c1", 1, 2)
    await has_hosts(placement, "c2", 3)
    await done(placement, RegisterCell(cell="c1"))
    gone = await done(placement, DropCell(cell="c1"))
    assert gone.cell == RegisteredCell(name="c1", gone=True)
    assert await there(placement) == {"c2": (True, 1, 0)}
    assert [provider.name for provider in await find_providers(placement)] == ["host-3"]
    assert await edit_cell(placement, DropCell(cell="c1")) == Missing(what="cell", names=("c1",))
    await has_hosts(placement, "c1", 1, sequence=2)  # made anew, its agents may speak again
    assert await there(placement) == {"c1": (True, 1, 0), "c2": (True, 1, 0)}


async def test_a_cell_with_instances_stays_and_is_closed(placement: Placement) -> None:
    await has_hosts(placement, "c1", 1, 2)
    await boots(placement, 1, 1)
    assert await edit_cell(placement, DropCell(cell="c1")) == CellInUse(cell="c1", instances=1)
    assert await there(placement) == {"c1": (False, 2, 1)}
    assert await open_hosts(placement) == {"host-1", "host-2"}  # enabled again, all is as it was


async def test_by_force_it_goes_and_what_is_held_there_is_given_back_later(placement: Placement) -> None:
    await has_hosts(placement, "c1", 1, 2)
    generation = await boots(placement, 1, 1)
    await done(placement, DropCell(cell="c1", force=True))
    assert (await placement.cells.find(FindCells())).cells == (RegisteredCell(name="c1", gone=True),)
    assert await open_hosts(placement) == set()
    await placement.claims.release_many([a_release(1, generation)])
    await placement.reports.sweep()
    assert await find_providers(placement) == [] and await there(placement) == {}


async def test_who_comes_in_between_is_not_lost(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    await has_hosts(placement, "c1", 1, 2)
    end = placement.reports.end

    async def after_it(*given: Any, **named: Any) -> None:
        await boots(placement, 1, 1)
        await end(*given, **named)

    monkeypatch.setattr(placement.reports, "end", after_it)
    assert await edit_cell(placement, DropCell(cell="c1")) == CellInUse(cell="c1", instances=1, hosts=1)
    [host] = await find_providers(placement, parts=("inventories",))
    assert (host.id, host.used) == (uid(1, "a"), {"VCPU": 1})


async def test_a_host_that_was_given_to_another_cell_meanwhile_stays(placement: Placement) -> None:
    await has_hosts(placement, "c2", 1)
    await placement.reports.end("c1", [uid(1, "a")], in_use_too=True)
    assert await there(placement) == {"c2": (True, 1, 0)}
