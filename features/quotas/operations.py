"""Operations on the quotas of projects."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bus.feature import Offers
from bus.sql.statement import Transaction
from bus.vocabulary import Contended, Missing
from features.quotas import limits as stored_limits
from features.quotas import messages as quotas
from features.quotas import usage
from features.quotas.budgets import LimitRow, QuotaLimits, unknown_resources
from features.quotas.counts import ProjectCount
from features.quotas.limits import CachedLimits
from placement_worker.extension import CommitRecord, PlacementOperations, again, changing, new_rules_edition

Limits = Mapping[str, Mapping[str, int]]  # project → resource → limit

MOST_NAMED = 1000  # maximum number of projects in one change; instead of more, "" (all projects) is published


@dataclass(eq=False)
class QuotaOperations(PlacementOperations):
    """Operations on the limits of projects. Claims enforce the limits."""

    cache: CachedLimits
    offers: Offers  # with every ProjectCount
    holder_types: Collection[str]  # consumer types that no quota counts
    source: Literal["berth", "keystone"] = "berth"  # keystone: edits are refused, except by `replace_all`

    async def find(self, query: quotas.FindQuotas) -> quotas.QuotasFound:
        async with self.database.read() as tx:
            _, limits = await stored_limits.read_limits(tx)
            if query.project is not None:
                projects: Sequence[str] = (query.project,)
            else:
                projects = await usage.page(tx, query.after, query.limit, used=query.used)
            numbers = await usage.numbers(tx, projects)
            usages = await usage.usage(tx, self.book, numbers.values(), self.holder_types) if numbers else {}
            for count in self.offers.every(ProjectCount) if usages else ():
                for id_, number in (await count.used(tx, usages, self.holder_types)).items():
                    usages[id_].used[count.resource] = number
        more = projects[-1] if query.project is None and len(projects) == query.limit else ""
        if query.project is None and not query.after:
            projects = (quotas.DEFAULT, *projects)
        found = [
            quotas.Quota(
                project=project,
                limits=dict(limits.own(project)),
                effective=limits.effective(project),
                used=usages[numbers[project]].used if project in numbers else {},
            )
            for project in projects
        ]
        return quotas.QuotasFound(quotas=tuple(found), more=more, source=self.source)

    @again(lambda *_: quotas.QuotaEditAnswered(result=Contended()))
    async def edit(self, order: quotas.QuotaEditRequested) -> quotas.QuotaEditAnswered:
        """Set or remove the limits of a project; refused if Keystone has them."""
        edit = order.edit
        if self.source == "keystone":
            return quotas.QuotaEditAnswered(result=quotas.QuotaSourceIsKeystone())
        if isinstance(edit, quotas.SetQuota):
            async with self.database.read() as tx:
                await self.book.class_names(tx, ())
            counted = {count.resource for count in self.offers.every(ProjectCount)}
            if unknown := unknown_resources(edit.limits, self.book.classes.ids.keys() | counted):
                return quotas.QuotaEditAnswered(result=Missing(what="resource", names=unknown))
        return quotas.QuotaEditAnswered(result=await self._edit(edit))

    async def _edit(self, edit: quotas.QuotaEdit) -> quotas.QuotaEdited:
        project = edit.project
        async with changing(self.database, self.book) as tx:
            await new_rules_edition(tx)
            _, limits = await stored_limits.read_limits(tx)
            before = limits.own(project)
            if isinstance(edit, quotas.SetQuota):
                after = {**before, **edit.limits}
            else:
                left = before if edit.resources else ()
                after = {name: before[name] for name in left if name not in edit.resources}
            changed = await self._replace(
                tx, limits, QuotaLimits({**limits.by_project, project: after}).rows()
            )
        [quota] = (await self.find(quotas.FindQuotas(project=project))).quotas
        return quotas.QuotaEdited(quota=quota, changed=changed)

    @again()
    async def replace_all(self, limits: Limits) -> bool:
        """Replace the limits of all projects and the default; return whether any changed."""
        wanted = QuotaLimits(limits).rows()
        async with self.database.read() as tx:
            _, current = await stored_limits.read_limits(tx)
        if current.rows() == wanted:
            return False
        async with changing(self.database, self.book) as tx:
            await new_rules_edition(tx)
            _, current = await stored_limits.read_limits(tx)
            return await self._replace(tx, current, wanted)

    async def _replace(self, tx: Transaction, current: QuotaLimits, wanted: set[LimitRow]) -> bool:
        """Store the limits `wanted` in place of the limits `current`; return whether a limit was changed."""
        former = current.rows()
        if changed := former ^ wanted:
            left = {row[:2] for row in wanted}
            await stored_limits.UNSET(tx, [row[:2] for row in former if row[:2] not in left])
            await stored_limits.SET(tx, sorted(wanted - former))
            projects = sorted({project for project, *_ in changed})
            if len(projects) > MOST_NAMED:
                projects = [quotas.DEFAULT]
            keys = [quotas.quota_key(project) for project in projects]
            await self.log.write(tx, CommitRecord(wakes=keys))
        edition, new_limits = await stored_limits.read_limits(tx)
        tx.after_commit(lambda: self.cache.learn(edition, new_limits))
        return bool(changed)
