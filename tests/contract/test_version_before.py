"""A placement of the previous version works in parallel with this one, by its literal SQL statements."""

import msgspec
import pytest
from sqlalchemy import text

from bus.aggregates import AggregateEdited, ChangeAggregate, MakeAggregate
from bus.cells import CellEdited, RegisterCell
from bus.claims import Claimed, GroupPolicyViolated, Held, Released, ReleaseRequested, ReleaseResult, Retired
from bus.clock import Clock
from bus.groups import GroupEditRequested, MakeGroup
from bus.replication import PlacementChanged, ProviderChange
from bus.reports import Inventory
from bus.sql.statement import Statement
from bus.sql.transaction import Transaction
from placement_worker import Placement, breaches
from placement_worker.schema import LAST_CHANGE
from placement_worker.store import changes
from tests.support.ids import uid
from tests.support.placement_builders import (
    a_claim,
    a_placement,
    a_release,
    a_report,
    an_order,
    keeps_its_index,
    on_hosts,
)
from tests.support.placement_calls import edit_aggregate, edit_cell

CLOCK = Clock(now=lambda: 1.0)
HOST, NEW = 1, 2

ENTER = Statement(
    "INSERT INTO hosts (root, cell, agent, host, zone, sequence, gone, created_at, updated_at)"
    " SELECT n.root, '', '', '', '', -1, false, 1.0, 1.0 FROM {n} WHERE true ORDER BY n.root"
    " ON CONFLICT DO NOTHING",
    root=str,
)
SET_HOSTS = Statement(
    "UPDATE hosts SET cell = n.cell, agent = n.agent, host = n.host, zone = n.zone, sequence = n.sequence,"
    " gone = n.gone, updated_at = 1.0 FROM {n} WHERE hosts.root = n.root",
    root=str, cell=str, agent=str, host=str, zone=str, sequence=int, gone=bool,
)  # fmt: skip
INSERT_PROVIDERS = Statement(
    "INSERT INTO resource_providers (id, uuid, name, generation, shape, parent_provider_id, root_provider_id,"
    " created_at, updated_at) SELECT n.id, n.uuid, n.called, n.generation, n.shape, n.parent, n.root,"
    " 1.0, 1.0 FROM {n}",
    id=int, uuid=str, called=str, generation=int, shape=int, parent=int, root=int,
)  # fmt: skip
UPSERT_INVENTORIES = Statement(
    "INSERT INTO inventories (resource_provider_id, resource_class_id, total, reserved, min_unit, max_unit,"
    " step_size, allocation_ratio, used, created_at, updated_at)"
    " SELECT n.provider, n.class, n.total, n.reserved, n.least, n.most, n.step, n.ratio, 0, 1.0, 1.0"
    " FROM {n} WHERE true"
    " ON CONFLICT (resource_provider_id, resource_class_id) DO UPDATE SET total = excluded.total,"
    " reserved = excluded.reserved, min_unit = excluded.min_unit, max_unit = excluded.max_unit,"
    " step_size = excluded.step_size, allocation_ratio = excluded.allocation_ratio,"
    " updated_at = excluded.updated_at",
    **{"provider": int, "class": int, "total": int, "reserved": int, "least": int, "most": int, "step": int},
    ratio=float,
)
INSERT_TRAITS = Statement(
    "INSERT INTO resource_provider_traits (resource_provider_id, trait_id, created_at, updated_at)"
    " SELECT n.provider, n.other, 1.0, 1.0 FROM {n}",
    provider=int,
    other=int,
)
READ_TREES = Statement(
    "SELECT p.id, p.uuid, p.name, p.parent_provider_id, p.root_provider_id, p.generation, p.shape,"
    " (SELECT string_agg(CAST(i.resource_class_id AS text) || ':' || CAST(i.total AS text)"
    " || ':' || CAST(i.reserved AS text) || ':' || CAST(i.min_unit AS text)"
    " || ':' || CAST(i.max_unit AS text) || ':' || CAST(i.step_size AS text)"
    " || ':' || EXACTLY(i.allocation_ratio) || '=' || CAST(i.used AS text), ';')"
    " FROM inventories i WHERE i.resource_provider_id = p.id) AS has,"
    " (SELECT string_agg(CAST(t.trait_id AS text), ',')"
    " FROM resource_provider_traits t WHERE t.resource_provider_id = p.id) AS can,"
    " h.host, h.cell, h.agent, h.zone, h.sequence, h.gone,"
    f" (SELECT number FROM changes WHERE id = {LAST_CHANGE}) AS number"
    " FROM resource_providers p LEFT JOIN hosts h ON h.root = p.uuid WHERE p.root_provider_id IN"
    " (SELECT o.root_provider_id FROM {n} JOIN resource_providers o ON o.uuid = n.uuid)",
    uuid=str,
)
INSERT_CONSUMERS = Statement(
    "INSERT INTO consumers (uuid, generation, project_id, user_id, consumer_type_id, created_at, updated_at)"
    " SELECT n.uuid, 1, n.project, n.owner, n.type, 1.0, 1.0 FROM {n} WHERE true ORDER BY n.uuid"
    " ON CONFLICT (uuid) DO NOTHING RETURNING id, uuid",
    uuid=str, project=int, owner=int, type=int,
)  # fmt: skip
INSERT_ALLOCATIONS = Statement(
    "INSERT INTO allocations"
    " (consumer_id, resource_provider_id, resource_class_id, used, created_at, updated_at)"
    " SELECT n.consumer, n.provider, n.class, n.used, 1.0, 1.0 FROM {n}",
    **{"consumer": int, "provider": int, "class": int, "used": int},
)
SET_USED = Statement(
    "UPDATE inventories SET used = n.used FROM {n}"
    " WHERE inventories.resource_provider_id = n.provider AND inventories.resource_class_id = n.class",
    **{"provider": int, "class": int, "used": int},
)
SET_CONSUMERS = Statement(
    "UPDATE consumers SET generation = n.generation, updated_at = 1.0 FROM {n} WHERE consumers.id = n.id",
    id=int,
    generation=int,
)
DELETE_ALLOCATIONS = Statement("DELETE FROM allocations WHERE consumer_id IN (SELECT n.id FROM {n})", id=int)
DELETE_CONSUMERS = Statement("DELETE FROM consumers WHERE id IN (SELECT n.id FROM {n})", id=int)
INSERT_RETIRED = Statement(
    "INSERT INTO retired_consumers (uuid, why, at) SELECT n.uuid, n.why, 1.0 FROM {n} WHERE true"
    " ORDER BY n.uuid ON CONFLICT DO NOTHING",
    uuid=str,
    why=str,
)
READ_RETIRED = Statement(
    "SELECT r.uuid, r.why FROM {n} JOIN retired_consumers r ON r.uuid = n.uuid", uuid=str
)


async def released(placement: Placement, *orders: ReleaseRequested) -> list[ReleaseResult]:
    return [answer.result for answer in await placement.claims.release_many(orders)]


async def number(tx: Transaction, query: str, **named: object) -> int:
    return int((await tx.execute(text(query), named)).scalar_one())


async def _class(tx: Transaction) -> int:
    return await number(tx, "SELECT id FROM resource_classes WHERE name = 'VCPU'")


async def test_it_reports_a_host_anew_and_another_and_this_one_goes_on_from_there(url: str) -> None:
    async with a_placement(url, CLOCK) as placement:
        await placement.reports.report_many([a_report(HOST)])
        async with placement.database.write() as tx:
            (read,) = await READ_TREES(tx, [(uid(HOST, "a"),)])
            vcpu = await _class(tx)
            trait = await number(tx, "SELECT min(id) FROM traits")
            await ENTER(tx, [(uid(NEW, "a"),)])
            await INSERT_PROVIDERS(tx, [(900, uid(NEW, "a"), "host-2", 1, 1, None, 900)])
            await UPSERT_INVENTORIES(
                tx, [(900, vcpu, 8, 0, 1, 8, 1, 1.0), (read["id"], vcpu, 6, 0, 1, 6, 1, 1.0)]
            )
            await INSERT_TRAITS(tx, [(900, trait)])
            await SET_HOSTS(tx, [(uid(NEW, "a"), "c1", "agent-2", "host-2", "", 1, False)])
    assert read["sequence"] == 1
    async with a_placement(url, CLOCK) as placement:
        await keeps_its_index(placement)
        both = [an_order(a_claim(5, on_hosts(NEW, VCPU=8))), an_order(a_claim(6, on_hosts(HOST, VCPU=6)))]
        answers = await placement.claims.claim_many(both)
        assert all(isinstance(answer.results[0], Claimed) for answer in answers)
        less = {"VCPU": Inventory(total=9)}
        await placement.reports.report_many([a_report(NEW, sequence=2, inventories=less)])
        async with placement.database.read() as tx:
            assert await number(tx, "SELECT total FROM inventories WHERE resource_provider_id = 900") == 9
        assert await breaches(placement.database) == []


async def test_it_claims_and_releases_and_this_one_counts_it(url: str) -> None:
    async with a_placement(url, CLOCK) as placement:
        await placement.reports.report_many([a_report(HOST)])
        await placement.claims.claim_many([an_order(a_claim(4, on_hosts(HOST, VCPU=1)))])
        async with placement.database.write() as tx:
            vcpu = await _class(tx)
            root = await number(tx, "SELECT id FROM resource_providers")
            owners = "SELECT id, project_id, user_id, consumer_type_id FROM consumers WHERE uuid = :uuid"
            mine = (await tx.execute(text(owners), {"uuid": uid(4)})).one()
            (made,) = await INSERT_CONSUMERS(tx, [(uid(5), *tuple(mine)[1:])])
            await INSERT_ALLOCATIONS(tx, [(made["id"], root, vcpu, 2)])
            await DELETE_ALLOCATIONS(tx, [(mine.id,)])
            await DELETE_CONSUMERS(tx, [(mine.id,)])
            await INSERT_RETIRED(tx, [(uid(4), "deleted")])
            await SET_USED(tx, [(root, vcpu, 2)])
    async with a_placement(url, CLOCK) as placement:
        await keeps_its_index(placement)
        assert await breaches(placement.database) == []
        assert await released(placement, a_release(5, None, "over"), a_release(4, None, "over")) == [
            Held(generation=1, allocations={uid(HOST, "a"): {"VCPU": 2}}, roots=(uid(HOST, "a"),)),
            Retired(why="deleted"),
        ]


@pytest.mark.parametrize("unplaceable", [True, False])
async def test_what_it_ended_for_want_of_a_host_is_known_as_such_and_still_is_to_it(
    url: str, unplaceable: bool
) -> None:
    why = "unplaceable: no host" if unplaceable else "deleted"
    async with a_placement(url, CLOCK) as placement:
        async with placement.database.write() as tx:
            await INSERT_RETIRED(tx, [(uid(1), why)])
        told = Retired(why=why, unplaceable=unplaceable)
        assert await released(placement, a_release(1, None, "no host")) == [told]
        # its scheduler asks, and this placement answers
        asked = ReleaseRequested(consumer=uid(2), generation=None, retire=why)
        assert await released(placement, asked) == [Released()]
        assert await released(placement, asked) == [told]
        async with placement.database.read() as tx:
            read = await READ_RETIRED(tx, [(uid(2),)])
        assert [dict(row) for row in read] == [{"uuid": uid(2), "why": why}]


UNTOLD = Statement(
    "SELECT l.number, l.changes FROM change_log l WHERE l.number > :after ORDER BY l.number LIMIT :most"
)
MAKE_AGGREGATES = Statement(
    "INSERT INTO aggregates (uuid, created_at, updated_at) SELECT n.called, 1.0, 1.0"
    " FROM {n} WHERE true ORDER BY n.called ON CONFLICT DO NOTHING RETURNING id",
    called=str,
)
INSERT_AGGREGATES = Statement(
    "INSERT INTO resource_provider_aggregates"
    " (resource_provider_id, aggregate_id, reported, created_at, updated_at)"
    " SELECT n.provider, n.other, n.reported, 1.0, 1.0 FROM {n}",
    provider=int,
    other=int,
    reported=bool,
)
LOG_ALONE = Statement(
    "INSERT INTO change_log (number, changes) SELECT n.number, n.changes FROM {n}", number=int, changes=str
)
EAST, WEST = uid(1, "c"), uid(2, "c")


async def test_it_tells_the_log_without_aggregates_and_who_hears_that_looks_them_up(url: str) -> None:
    async with a_placement(url, CLOCK) as placement, a_placement(url, CLOCK) as other:
        await placement.reports.report_many([a_report(HOST)])
        made = MakeAggregate(aggregate=EAST, name="east", metadata={"a": "b"}, hosts=("host-1",))
        done = await edit_aggregate(placement, made)
        async with placement.database.read() as tx:
            rows = await UNTOLD(tx, after=0, most=100)
        decode = msgspec.json.Decoder(tuple[ProviderChange, ...]).decode
        for row in rows:
            await other.memory.handle(PlacementChanged(number=row["number"], changes=decode(row["changes"])))
        assert isinstance(done, AggregateEdited)
        assert other.memory.index.aggregate_facts == {EAST: done.aggregate}
        await keeps_its_index(other)


async def test_nor_with_cells(url: str) -> None:
    async with a_placement(url, CLOCK) as placement, a_placement(url, CLOCK) as other:
        done = await edit_cell(placement, RegisterCell(cell="c1", enabled=False))
        assert isinstance(done, CellEdited)
        await other.memory.handle(PlacementChanged(number=done.number, changes=()))
        assert other.memory.index.cell_facts == {"c1": done.cell}
        await keeps_its_index(other)


async def test_it_puts_a_host_into_an_aggregate_and_this_one_names_it(url: str) -> None:
    async with a_placement(url, CLOCK) as placement:
        await placement.reports.report_many([a_report(HOST)])
        async with placement.database.write() as tx:
            (made,) = await MAKE_AGGREGATES(tx, [(WEST,)])
            root = await number(tx, "SELECT id FROM resource_providers")
            await INSERT_AGGREGATES(tx, [(root, made["id"], False)])
            last = await changes.last_number(tx)
            await tx.execute(text("UPDATE changes SET number = :n WHERE id = 1"), {"n": last + 1})
            moved = ProviderChange(uid(HOST, "a"), uid(HOST, "a"), 1, {"VCPU": 0}, reshaped=True)
            await LOG_ALONE(tx, [(last + 1, msgspec.json.encode([moved]).decode())])
        await placement.memory.fresh()
        assert placement.memory.index.rows[uid(HOST, "a")].aggregates == (WEST,)
        done = await edit_aggregate(placement, ChangeAggregate(aggregate=WEST, name="west"))
        assert isinstance(done, AggregateEdited) and done.aggregate.name == "west"
        async with placement.database.write() as tx:  # which it still knows by its id
            assert await MAKE_AGGREGATES(tx, [(WEST,)]) == []
        await keeps_its_index(placement)


async def test_what_it_moves_of_a_server_group_is_still_of_it_and_judged_by_this_one(url: str) -> None:
    group = uid(1, "9")
    async with a_placement(url, CLOCK) as placement:
        await placement.reports.report_many([a_report(HOST), a_report(NEW)])
        made = MakeGroup(group=group, name="web", policy="anti-affinity", project="p1")
        await placement.server_groups.edit(GroupEditRequested(edit=made))
        await placement.claims.claim_many([an_order(a_claim(4, on_hosts(HOST, VCPU=1), group=group))])
        async with placement.database.write() as tx:
            vcpu = await _class(tx)
            old, new = [
                await number(tx, "SELECT id FROM resource_providers WHERE uuid = :uuid", uuid=uid(host, "a"))
                for host in (HOST, NEW)
            ]
            mine = await number(tx, "SELECT id FROM consumers")
            await DELETE_ALLOCATIONS(tx, [(mine,)])
            await INSERT_ALLOCATIONS(tx, [(mine, new, vcpu, 1)])
            await SET_CONSUMERS(tx, [(mine, 2)])
            await SET_USED(tx, [(old, vcpu, 0), (new, vcpu, 1)])
    async with a_placement(url, CLOCK) as placement:
        await keeps_its_index(placement)
        assert await breaches(placement.database) == []
        second = a_claim(5, on_hosts(NEW, VCPU=1), on_hosts(HOST, VCPU=1), group=group)
        [answer] = await placement.claims.claim_many([an_order(second)])
        [result] = answer.results
        assert isinstance(result, Claimed)
        refused = GroupPolicyViolated(provider=uid(NEW, "a"), group=group, policy="anti-affinity", members=1)
        assert (result.choice, result.refused) == (1, (refused,))
        assert await breaches(placement.database) == []
