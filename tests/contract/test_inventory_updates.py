"""Reports that change only amounts are stored by one statement of PostgreSQL, with the same result as by the
transaction that stores all other reports.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as with_fields
from sqlalchemy import text

from bus.claims import Claimed
from bus.clock import Clock
from bus.messages import InventoryReported
from bus.names import NameEditRequested, RenameName
from bus.reports import Inventory
from bus.resources import OwnerEditRequested, SetInventory, SetTraits
from bus.sql.transaction import PostgresTransaction
from placement_worker import Placement
from placement_worker.change_log import ChangeLog
from placement_worker.core.trees import Tree
from placement_worker.store import changes, claims, hosts, tree_reads
from placement_worker.store.audit import breaches
from tests.support.ids import uid
from tests.support.midway import Gate
from tests.support.placement_builders import (
    a_claim,
    a_placement,
    a_provider,
    a_report,
    an_order,
    gone,
    keeps_its_index,
    on_hosts,
)
from tests.support.placement_calls import claim, edit, report
from tests.support.waiting import until

pytestmark = pytest.mark.services


def a_node(number: int, reserved: int, sequence: int, **given: Any) -> InventoryReported:
    inventories = {"CUSTOM_METAL": Inventory(total=1, reserved=reserved, max_unit=1)}
    return a_report(number, inventories=inventories, sequence=sequence, **given)


@pytest.fixture
async def placement(placement_url: str) -> AsyncIterator[Placement]:
    async with a_placement(placement_url) as placement:
        yield placement
        assert await breaches(placement.database) == []
        await placement.memory.fresh()
        await keeps_its_index(placement)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The roots that each statement has stored."""
    roots: list[set[str]] = []
    write = ChangeLog.write_inventory_updates

    async def recorded(self: ChangeLog, *given: Any) -> set[str]:
        roots.append(await write(self, *given))
        return roots[-1]

    monkeypatch.setattr(ChangeLog, "write_inventory_updates", recorded)
    return roots


async def tree_of(placement: Placement, number: int) -> Tree:
    async with placement.database.read() as tx:
        return (await tree_reads.read(tx, placement.book, [uid(number, "a")]))[uid(number, "a")]


async def last_change(placement: Placement) -> int:
    async with placement.database.read() as tx:
        return await changes.last_number(tx)


async def test_changed_amounts_of_several_nodes_take_one_statement(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []

    def recorded(work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(self: PostgresTransaction, sql: str, *values: Any) -> Any:
            statements.append(sql)
            return await work(self, sql, *values)

        return call

    await report(placement, a_node(1, 0, 1), a_node(2, 0, 1), a_node(3, 0, 1))
    before = await last_change(placement)
    with monkeypatch.context() as patch:
        for name in ("fetch", "_execute_command"):
            patch.setattr(PostgresTransaction, name, recorded(getattr(PostgresTransaction, name)))
        reports = a_node(2, 1, 2), a_node(3, 0, 2), a_node(1, 1, 2)
        assert await report(placement, *reports) == ["", "", ""]
    assert len(statements) == 1
    async with placement.database.read() as tx:
        found = await changes.since(tx, before, 10)
    [logged] = found.changes
    assert [change.provider for change in logged.changes] == [uid(1, "a"), uid(2, "a")]
    assert [(await tree_of(placement, number)).sequence for number in (1, 2, 3)] == [2, 2, 2]


async def operator_sets(placement: Placement, number: int) -> None:
    inventory = Inventory(total=1, reserved=1, max_unit=1)
    await edit(
        placement, SetInventory(provider=uid(number, "a"), resource_class="CUSTOM_METAL", inventory=inventory)
    )


async def operator_adds_a_trait(placement: Placement, number: int) -> None:
    await edit(placement, SetTraits(provider=uid(number, "a"), traits=("COMPUTE_STATUS_DISABLED",)))


async def operator_gives(placement: Placement, number: int) -> None:
    await claim(placement, an_order(a_claim(number, on_hosts(number, CUSTOM_METAL=1))))
    await placement.reports._report([gone(number, 3)])
    await placement.reports.give(
        OwnerEditRequested(root=uid(number, "a"), cell="c1", host=f"host-{number}", agent=f"agent-{number}")
    )


def with_a_child(number: int, sequence: int) -> InventoryReported:
    child = a_provider(100 + number, number, name=f"child-{number}")
    root = a_node(number, 0, sequence)
    return with_fields(root, providers=(*root.providers, child))


async def has_a_child(placement: Placement, number: int) -> None:
    await placement.reports._report([with_a_child(number, 4)])


async def nothing(placement: Placement, number: int) -> None:
    pass


Deed = Callable[[Placement, int], Awaitable[None]]
CASES: list[tuple[str, Deed, dict[str, Any], bool]] = [
    ("another amount", nothing, {"reserved": 1}, True),
    ("the same amount", nothing, {"reserved": 0}, True),
    ("an older report", nothing, {"reserved": 1, "sequence": 1}, False),
    ("a trait", nothing, {"reserved": 1, "traits": ("CUSTOM_A",)}, False),
    ("a name", nothing, {"reserved": 1, "name": "renamed"}, False),
    ("labels", nothing, {"reserved": 1, "labels": {"rack": "r1"}}, False),
    ("an agent", nothing, {"reserved": 1, "agent": "agent-other"}, False),
    ("the same amount, set by an operator", operator_sets, {"reserved": 1}, True),
    ("a trait of an operator", operator_adds_a_trait, {"reserved": 1}, False),
    ("deleted, and given to its cell again", operator_gives, {"reserved": 1}, True),
    ("without its child", has_a_child, {"reserved": 1}, False),
]


async def test_both_ways_to_store_a_report_have_the_same_result(
    placement: Placement, stored: list[set[str]]
) -> None:
    def comparable(tree: Tree, number: int, first: Tree) -> Any:
        text = repr(replace(tree, providers=()))
        providers = [
            replace(each, id=0, shape=each.shape - first.providers[0].shape) for each in tree.providers
        ]
        for name in (uid(number, "a"), uid(100 + number, "a"), f"-{number}'"):
            text = text.replace(name, "N")
        return text, [
            repr(each).replace(uid(number, "a"), "N").replace(f"-{number}'", "N") for each in providers
        ]

    for position, (case, prepare, given, one_statement) in enumerate(CASES):
        results = []
        for number in (2 * position + 1, 2 * position + 2):
            await placement.reports._report([a_node(number, 0, 2)])
            first = await tree_of(placement, number)
            await prepare(placement, number)
            values = {"sequence": 9, **given}
            node_fields = {name: values.pop(name) for name in ("labels", "agent") if name in values}
            if "name" in values:
                values["name"] += f"-{number}"
            last = with_fields(a_node(number, **values), **node_fields)
            if number % 2:
                stored.clear()
                assert await report(placement, last) == [""]
                assert (stored == [{last.root}]) == one_statement, (case, stored)
            else:
                await placement.reports._report([last])
            results.append(comparable(await tree_of(placement, number), number, first))
        assert results[0] == results[1], case


WAITS_FOR_A_LOCK = text(
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


async def until_waiting(placement: Placement, count: int) -> None:
    async def waiting() -> bool:
        async with placement.database.read() as tx:
            return bool((await tx.execute(WAITS_FOR_A_LOCK)).scalar_one() == count)

    await until(waiting)


async def test_a_report_during_a_claim_of_its_node_keeps_both(
    placement: Placement, stored: list[set[str]], gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    await report(placement, a_node(1, 0, 1))
    monkeypatch.setattr(claims, "save_world", gate.before(claims.save_world))
    claiming = asyncio.create_task(claim(placement, an_order(a_claim(1, on_hosts(1, CUSTOM_METAL=1)))))
    await gate.reached.wait()
    reporting = asyncio.create_task(report(placement, a_node(1, 1, 2)))
    await until_waiting(placement, 1)
    gate.open.set()
    assert isinstance((await claiming)[0], Claimed)
    assert await reporting == [""]
    assert stored == [set()]  # the claim has changed the generation
    [node] = (await tree_of(placement, 1)).providers
    assert node.used == {"CUSTOM_METAL": 1} and node.inventories["CUSTOM_METAL"].reserved == 1


async def test_of_reports_at_the_same_moment_the_newest_counts(
    placement: Placement, stored: list[set[str]]
) -> None:
    await report(placement, a_node(1, 0, 1))
    async with placement.database.write() as tx:
        await hosts.enter(tx, [uid(1, "a")], 0.0)
        newer = asyncio.create_task(report(placement, a_node(1, 1, 3)))
        await until_waiting(placement, 1)
        older = asyncio.create_task(report(placement, a_node(1, 0, 2)))
        await until_waiting(placement, 2)
    assert await newer == await older == [""]
    assert stored == [{uid(1, "a")}, set()]
    tree = await tree_of(placement, 1)
    assert tree.sequence == 3 and tree.providers[0].inventories["CUSTOM_METAL"].reserved == 1


async def test_a_report_waits_for_an_earlier_one_that_adds_a_child(
    placement: Placement, stored: list[set[str]], gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    await report(placement, a_node(1, 0, 1))
    with monkeypatch.context() as patch:
        patch.setattr(changes, "announce", gate.before(changes.announce))
        adding = asyncio.create_task(report(placement, with_a_child(1, 2)))
        await gate.reached.wait()
    removing = asyncio.create_task(report(placement, a_node(1, 0, 3)))
    await until_waiting(placement, 1)
    gate.open.set()
    assert await adding == await removing == [""]
    assert stored == [set()]
    assert len((await tree_of(placement, 1)).providers) == 1


async def test_a_process_with_an_outdated_index_undoes_no_change_of_another(
    placement: Placement, stored: list[set[str]]
) -> None:
    await report(placement, *(a_node(number, 0, 1) for number in (1, 2, 3)))
    other = Placement(placement.database, Clock())
    await other.start()
    await claim(other, an_order(a_claim(1, on_hosts(1, CUSTOM_METAL=1))))
    await edit(other, SetTraits(provider=uid(2, "a"), traits=("COMPUTE_STATUS_DISABLED",)))
    await report(other, with_a_child(3, 2))
    stored.clear()
    assert await report(placement, *(a_node(number, 1, 3) for number in (1, 2, 3))) == ["", "", ""]
    assert stored == [set()]
    trees = [await tree_of(placement, number) for number in (1, 2, 3)]
    claimed, edited, alone = [tree.providers[0] for tree in trees]
    assert claimed.used == {"CUSTOM_METAL": 1} and edited.traits == ("COMPUTE_STATUS_DISABLED",)
    assert len(trees[2].providers) == 1
    assert [node.inventories["CUSTOM_METAL"].reserved for node in (claimed, edited, alone)] == [1, 1, 1]


async def test_a_resource_class_of_another_process_is_read(
    placement: Placement, stored: list[set[str]]
) -> None:
    other = Placement(placement.database, Clock())
    await other.start()
    await report(other, a_node(1, 0, 1))
    await placement.memory.handle_many([*other.log.relay._unpublished.values()])
    assert await report(placement, a_node(1, 1, 2)) == [""]
    assert stored == [{uid(1, "a")}]


@pytest.mark.parametrize("names_are_read", [False, True])
async def test_a_report_after_a_rename_of_its_class_changes_no_other_class(
    placement: Placement, stored: list[set[str]], names_are_read: bool
) -> None:
    await report(placement, a_node(1, 0, 1))
    other = Placement(placement.database, Clock())
    await other.start()
    rename = RenameName(name="CUSTOM_METAL", to="CUSTOM_OTHER")
    await other.classes_and_traits.edit(NameEditRequested(kind="resource class", edit=rename))
    if names_are_read:
        await placement.book.read_again(placement.database)
    assert await report(placement, a_node(1, 1, 2)) == [""]
    assert stored == [set()]
    [node] = (await tree_of(placement, 1)).providers
    assert node.inventories == a_node(1, 1, 2).providers[0].inventories


async def test_a_report_that_was_stored_before_a_crash_is_not_stored_twice(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    await report(placement, a_node(1, 0, 1))

    def crash(*_: Any, **__: Any) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(ChangeLog, "_learn", crash)
        with pytest.raises(asyncio.CancelledError):
            await report(placement, a_node(1, 1, 2))
    number = await last_change(placement)
    restarted = Placement(placement.database, Clock())
    await restarted.start()
    assert await report(restarted, a_node(1, 1, 2)) == [""]
    assert await last_change(placement) == number
    told: list[Sequence[int]] = []
    published = asyncio.Event()

    async def publish(*messages: Any) -> None:
        told.append([message.number for message in messages])
        published.set()

    relaying = asyncio.create_task(restarted.log.relay.run(publish))
    await published.wait()
    relaying.cancel()
    assert told[0][-1] == number
