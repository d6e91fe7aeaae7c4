"""Applies agents' reports of provider trees, and deletes the provider trees of deleted hosts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from bus.domains import LabelEditAnswered, LabelEditRequested, LabelsEdited, LevelReserved
from bus.errors import Poison
from bus.messages import BuildReshaped, InventoryReported
from bus.reports import ProviderReport
from bus.resources import OwnerEditAnswered, OwnerEditRequested, OwnerGiven
from bus.sql.statement import Transaction
from bus.vocabulary import Contended, Missing, portions, portions_by_size
from placement_worker.change_log import ReshapedBuilds
from placement_worker.core.labels import reserved_level
from placement_worker.core.reports import (
    bars_report,
    complaint,
    distinct_names,
    given,
    labelled,
    reported,
    settled,
    swept,
)
from placement_worker.core.reshape import NO_MOVES, MovedHolder, Moves, Unmovable, moves
from placement_worker.core.trees import Tree
from placement_worker.store import changes, hosts, reshapes, stored_trees
from placement_worker.transactions import PlacementOperations, again, changing

PROVIDERS_A_TRANSACTION = 2000
NOBODY_GOES: Mapping[str, Moves] = {}
FEW = 8  # up to so many reports, all their trees are locked: claims wait for the locks
TREES_SWEPT_AT_ONCE = 200  # trees per transaction; claims wait for its locks


@dataclass(eq=False)
class ReportOperations(PlacementOperations):
    """Applies the reports of agents about their hosts' provider trees."""

    def __post_init__(self) -> None:
        self.reshaped_builds = ReshapedBuilds(self.database)

    async def report_many(
        self, reports: Sequence[InventoryReported], *, cell: str = ""
    ) -> Sequence[Poison | None]:
        """Apply agents' reports of whole provider trees. Of several reports of one root, apply only the
        report with the highest sequence number. Return, for each report, why it is refused, or None.

        `cell` is the cell in the routing key of the messages; if not empty, reports of other cells are
        refused.
        """
        complaints = [
            f"cell: cell {cell} cannot report for cell {report.cell}"
            if cell not in ("", report.cell)
            else complaint(report, self.book.known)
            for report in reports
        ]
        latest: dict[str, int] = {}
        for position, report in enumerate(reports):
            best = latest.get(report.root)
            if not complaints[position] and (best is None or report.sequence > reports[best].sequence):
                latest[report.root] = position
        chosen = [reports[position] for position in latest.values()]
        plain = [report for report in chosen if report.reshape is None]
        parts = [*portions_by_size(plain, lambda load: len(load.providers), PROVIDERS_A_TRANSACTION)]
        parts += [[report] for report in chosen if report.reshape is not None]
        for part in parts:
            for root, why in (await self._report(part)).items():
                complaints[latest[root]] = why
        return [Poison(f"InventoryReported: {why}") if why else None for why in complaints]

    @again()
    async def _report(self, reports: Sequence[InventoryReported]) -> dict[str, str]:
        roots = [report.root for report in reports]
        now = self.clock.now()
        await self.book.know_contents(
            self.database, [report for each in reports for report in each.providers], now
        )
        new = sum(len(report.providers) for report in reports)
        async with self.numbers.taken(new) as numbers, changing(self.database, self.book) as tx:
            owned = await hosts.enter(tx, roots, now)
            number = 0
            if few := len(reports) <= FEW:  # few reports usually change something: lock before the only read
                found, number = await stored_trees.read_locked_at(tx, self.book, roots)
                before = owned | found
            else:
                before = owned | await stored_trees.read(tx, self.book, roots)
            outside = {}
            for report in reports:
                owner, known = before[report.root].cell, bool(before[report.root].providers)
                if why := bars_report(report.cell, owner, known=known, sequence=report.sequence, now=now):
                    outside[report.root] = why
            reports = [report for report in reports if report.root not in outside]
            moving = [report for report in reports if _reshapes(before[report.root], report)]
            goes: dict[str, Moves] = {}
            if moving:
                if not few:  # many reports usually change nothing: lock only trees to change, and read again
                    changing_roots = [report.root for report in moving]
                    locked, number = await stored_trees.read_locked_at(tx, self.book, changing_roots)
                    before |= {root: locked.get(root) or owned[root] for root in changing_roots}
                number = number or await changes.last_number(tx)
                outside |= await self._moved(tx, moving, before, goes)
            pairs: list[stored_trees.Judged] = []
            for report in reports:
                was, moves_ = before[report.root], goes.get(report.root, NO_MOVES)
                if report.sequence > was.sequence and report.root not in outside:
                    pairs.append((was, report, reported(was, report, number, moves_)))
            taken = await stored_trees.names_taken(tx, stored_trees.new_names(pairs))
            pairs = [*await self._apart(tx, pairs, taken, number, goes)]
            owners = {name: provider for name, (provider, _) in taken.items()}
            refused = outside | await stored_trees.clashes(tx, pairs, owners)
            if refused:
                await hosts.leave(tx, refused)
            sound = [(was, then) for was, _, then in pairs if then.root not in refused]
            await self._save(tx, sound, now, numbers, goes)
        return refused

    async def _moved(
        self,
        tx: Transaction,
        reports: Sequence[InventoryReported],
        before: Mapping[str, Tree],
        goes: dict[str, Moves],
    ) -> dict[str, str]:
        """Put the moves of allocations that reports ask for into `goes`; return the refusals by root."""
        refused = {}
        for report in reports:
            if report.reshape is None:
                continue
            provider_ids = {provider.uuid for provider in before[report.root].providers}
            homes = await stored_trees.homes(
                tx, {move.provider for move in report.reshape.moves} - provider_ids
            )
            if homes:
                provider, home = min(homes.items())
                refused[report.root] = f"reshape.moves: {provider} belongs to the tree of {home}"
                continue
            holders = await reshapes.read_holders(tx, self.book, report.root)
            try:
                goes[report.root] = moves(before[report.root], report, holders)
            except Unmovable as why:
                refused[report.root] = str(why)
        return refused

    async def _apart(
        self,
        tx: Transaction,
        pairs: Sequence[stored_trees.Judged],
        taken: dict[str, tuple[str, str]],
        number: int,
        goes: Mapping[str, Moves],
    ) -> Sequence[stored_trees.Judged]:
        """Return the reports with their trees (`pairs`), in which a provider is renamed if another cell uses
        its name. `taken` maps names in use to provider and cell; alternative names in use are added. `goes`:
        the moves of reshapes, by root.
        """
        renamed: dict[tuple[str, str], tuple[str, ...]] = {}
        for _, report, _ in pairs:
            for provider in report.providers:
                _, cell = taken.get(provider.name, ("", ""))
                if cell and cell != report.cell:
                    renamed[report.root, provider.id] = distinct_names(
                        provider.name, report.cell, provider.id
                    )
        if not renamed:
            return pairs
        taken |= await stored_trees.names_taken(tx, {name for names in renamed.values() for name in names})
        apart = []
        for before, report, after in pairs:
            providers = tuple(
                structs.replace(provider, name=_free_name(provider, renamed[report.root, provider.id], taken))
                if (report.root, provider.id) in renamed
                else provider
                for provider in report.providers
            )
            if providers != report.providers:
                report = structs.replace(report, providers=providers)
                after = reported(before, report, number, goes.get(report.root, NO_MOVES))
            apart.append((before, report, after))
        return apart

    @again(lambda *_: OwnerEditAnswered(result=Contended()))
    async def give(self, order: OwnerEditRequested) -> OwnerEditAnswered:
        """Assign a root provider to a cell for an operator; the next report may have any sequence number."""
        now = self.clock.now()
        async with changing(self.database, self.book) as tx:
            owned = (await hosts.enter(tx, [order.root], now))[order.root]
            before = (await stored_trees.read_locked(tx, self.book, [order.root])).get(order.root, owned)
            if not before.providers and before.sequence < 0:  # the root was never reported
                await hosts.leave(tx, [order.root])
                return OwnerEditAnswered(result=Missing(what="provider", names=(order.root,)))
            after = given(before, order)
            saving = [hosts.saving([after], now)]
            number = await self.log.write_trees(tx, [(before, after)], now, last=saving)
        owner = OwnerGiven(cell=before.cell, agent=before.agent, sequence=before.sequence, number=number)
        return OwnerEditAnswered(result=owner)

    @again(lambda *_: LabelEditAnswered(result=Contended()))
    async def label(self, order: LabelEditRequested) -> LabelEditAnswered:
        """Set and remove labels of hosts for an operator: of all hosts of the request, or of none."""
        if level := reserved_level(order.set):
            return LabelEditAnswered(result=LevelReserved(level=level))
        now, roots = self.clock.now(), tuple(dict.fromkeys(order.roots))
        async with changing(self.database, self.book) as tx:
            owned = await hosts.enter(tx, roots, now)
            found = await stored_trees.read_locked(tx, self.book, roots)
            is_there = {root: order.cell in ("", owned[root].cell) for root in found}
            if missing := tuple(root for root in roots if not is_there.get(root)):
                await hosts.leave(tx, roots)
                return LabelEditAnswered(result=Missing(what="host", names=missing))
            trees = [replace(owned[root], providers=found[root].providers) for root in roots]
            pairs = [(tree, labelled(tree, order)) for tree in trees]
            changed = [(was, then) for was, then in pairs if then is not was]
            number = 0
            if changed:
                saving = [hosts.saving([then for _, then in changed], now)]
                number = await self.log.write_trees(tx, changed, now, last=saving)
            await hosts.leave(tx, roots)
        return LabelEditAnswered(result=LabelsEdited(changed=len(changed), number=number))

    async def sweep(self) -> None:
        """Delete trees that were reported as deleted and have no allocations. After a reshape, stop
        withholding capacity once the allocations of the old inventory are released.
        """
        async with self.database.read() as tx:
            roots = sorted(
                {root for (root,) in (*await hosts.LEFTOVERS(tx), *await stored_trees.MAY_OPEN(tx))}
            )
        for part in portions(roots, TREES_SWEPT_AT_ONCE):
            await self._change(part, lambda tree: swept(tree) if tree.gone else settled(tree))

    async def end(self, cell: str, roots: Sequence[str], *, in_use_too: bool) -> None:
        """Delete the given hosts of a cell, as an operator requests. Hosts with allocations stay: unchanged
        or, with `in_use_too`, without free capacity.
        """

        def ended(tree: Tree) -> Tree:
            is_ending = tree.cell == cell and (in_use_too or not tree.in_use)
            return swept(replace(tree, gone=True)) if is_ending else tree

        for part in portions(roots, TREES_SWEPT_AT_ONCE):
            await self._change(part, ended)

    @again()
    async def _change(self, roots: Sequence[str], change: Callable[[Tree], Tree]) -> None:
        """Change trees in a transaction of its own."""
        now = self.clock.now()
        async with changing(self.database, self.book) as tx:
            await hosts.enter(tx, roots, now)
            locked = (await stored_trees.read_locked(tx, self.book, roots)).values()
            await self._save(tx, [(was, change(was)) for was in locked], now)
            await hosts.leave(tx, roots)

    async def _save(
        self,
        tx: Transaction,
        pairs: Sequence[tuple[Tree, Tree]],
        now: float,
        numbers: Iterator[int] = stored_trees.NONE_NEW,
        goes: Mapping[str, Moves] = NOBODY_GOES,
    ) -> None:
        changed = [(was, then) for was, then in pairs if then != was]
        if not changed:
            return
        moved = [(was, then, goes[then.root].moved) for was, then in changed if then.root in goes]
        allocations = reshapes.moved_allocations(self.book, moved, now)
        saving = [hosts.saving([then for _, then in changed], now)]
        number = await self.log.write_trees(tx, changed, now, numbers, allocations, saving)
        messages = [reshaped for _, then, some in moved for reshaped in _reshaped_messages(then, some, now)]
        if messages:  # not stored in the log, which is trimmed when it is too long
            await changes.store_reshaped(tx, number, messages)
            tx.after_commit(self.reshaped_builds.wake)

    async def prune(self, before: float) -> None:
        """Delete the stored owners of trees that were deleted before this time (seconds since 1970)."""
        async with self.database.write() as tx:
            await hosts.PRUNE(tx, before=before)


def _reshaped_messages(tree: Tree, moved: Sequence[MovedHolder], now: float) -> list[BuildReshaped]:
    return [
        BuildReshaped(
            build=holder.holder.uuid,
            cell=tree.cell,
            root=tree.root,
            generation=holder.holder.generation,
            number=0,
            at=now,
            allocations={**holder.holder.elsewhere, **holder.held},
        )
        for holder in moved
        if holder.holder.build
    ]


def _free_name(report: ProviderReport, names: Sequence[str], taken: Mapping[str, tuple[str, str]]) -> str:
    return next((name for name in names if taken.get(name, (report.id,))[0] == report.id), names[-1])


def _reshapes(before: Tree, report: InventoryReported) -> bool:
    return report.reshape is not None or reported(before, report).providers != before.providers
