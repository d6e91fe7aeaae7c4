"""Operations on aggregates: their properties and the hosts that operators added."""

from msgspec.structs import replace

from bus import aggregates
from bus.sql.failures import Conflict
from bus.sql.transaction import Transaction
from placement_worker.core.aggregates import (
    AggregateScene,
    Intent,
    as_change,
    coming_back,
    doubts,
    intent,
    move_in_and_out,
    zone_trouble,
)
from placement_worker.core.trees import WorkingTrees
from placement_worker.store import aggregates as stored
from placement_worker.store import changes, tree_reads
from placement_worker.transactions import PlacementOperations, again, changing, contended

PAGE_BYTES = 500_000  # about; a message holds a mebibyte
BESIDE = 100  # bytes of an aggregate without its name and metadata
ROWS = 1000


class AggregateOperations(PlacementOperations):
    async def find(self, query: aggregates.FindAggregates) -> aggregates.AggregatesFound:
        async with self.database.read() as tx:
            seen = await changes.last_number(tx)
            ids = await self._among(tx, query)
            found: dict[str, aggregates.Aggregate] = {}
            hosts: dict[str, int] = {}
            size, after, more = 0, query.after, True
            while more and len(found) < query.limit and size < PAGE_BYTES:
                page = await stored.page(tx, ids, query.name, after, ROWS)
                more = len(page) == ROWS
                for aggregate, count in page:
                    after = aggregate.id
                    if query.key and query.key not in aggregate.metadata:
                        continue
                    if len(found) == query.limit or size >= PAGE_BYTES:
                        more = True
                        break
                    found[after] = aggregate
                    if count:
                        hosts[after] = count
                    size += BESIDE + len(aggregate.name)
                    size += sum(len(key) + len(value) + 6 for key, value in aggregate.metadata.items())
        return aggregates.AggregatesFound(seen=seen, aggregates=tuple(found.values()), hosts=hosts, more=more)

    async def _among(self, tx: Transaction, query: aggregates.FindAggregates) -> list[str] | None:
        if not query.host:
            return list(query.ids) or None
        roots = (await stored.named_hosts(tx, [query.host])).get(query.host, ())
        theirs = await stored.OF_ROOTS(tx, [(root,) for root in roots]) if roots else ()
        return [uuid for (uuid,) in theirs if not query.ids or uuid in query.ids]

    async def edit(self, order: aggregates.AggregateEditRequested) -> aggregates.AggregateEditAnswered:
        return aggregates.AggregateEditAnswered(result=await self._edit(order.edit))

    @again(contended)
    async def _edit(self, edit: aggregates.AggregateEdit) -> aggregates.AggregateResult:
        now, change = self.clock.now(), as_change(edit)
        if isinstance(edit, aggregates.MakeAggregate):
            await self.book.aggregates.ensure(self.database, [edit.aggregate], now)
        else:
            await self.book.aggregates.look_up(self.database, [edit.aggregate])
        async with changing(self.database, self.book) as tx:
            await stored.TURN(tx)
            scene = AggregateScene(
                described=await stored.described(tx),
                known=bool(await stored.KNOWN(tx, uuid=edit.aggregate)),
                members=dict(await stored.MEMBERS(tx, uuid=edit.aggregate)),
                hosts=await stored.named_hosts(tx, (*change.add, *change.remove)),
            )
            wanted = intent(edit, scene)
            if not isinstance(wanted, Intent):
                return wanted
            done = await self._save(tx, wanted, scene, now)
        if isinstance(done, aggregates.AggregateEdited):
            return replace(done, warnings=(*doubts(change.set), *done.warnings))
        return done

    async def _save(
        self, tx: Transaction, wanted: Intent, scene: AggregateScene, now: float
    ) -> aggregates.AggregateResult:
        moving = await tree_reads.read_locked(tx, self.book, wanted.add | wanted.remove)
        working = WorkingTrees(moving)
        if not all(map(working.find, wanted.add | wanted.remove)):
            raise Conflict("a host was deleted while it was being read")
        added, removed = move_in_and_out(wanted, working)
        pairs = working.changed()
        concerned = pairs
        if wanted.rezoned:  # all hosts of the aggregate; hosts that stay are only read
            staying = await tree_reads.read(tx, self.book, scene.members.keys() - wanted.remove - wanted.add)
            after = {tree.root: (tree, tree) for tree in (*moving.values(), *staying.values())}
            concerned = [*(after | {then.root: (was, then) for was, then in pairs}).values()]
        if trouble := zone_trouble(wanted, scene.described, concerned):
            return trouble
        number = 0
        if wanted.said:
            await stored.say(tx, wanted.now, now)
        if pairs:
            number = await self._log.write_trees(tx, pairs, now)
        if wanted.said:
            number = await self._log.write_facts(tx, aggregates=(wanted.now,))
        return aggregates.AggregateEdited(
            aggregate=wanted.now,
            made=wanted.made,
            added=added,
            removed=removed,
            number=number,
            warnings=tuple(coming_back(wanted, moving)),
        )
