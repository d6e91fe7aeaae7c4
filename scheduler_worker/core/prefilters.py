"""Constraints that aggregates' metadata and the registry of cells add to every request before the search.

They are computed once per change of that data.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from scheduler_worker.core.alternative import Alternative
from scheduler_worker.core.request_options import RequestOptions

TENANT = "filter_tenant_id"  # and whatever else begins so: there may be several
NOBODY = "00000000-0000-0000-0000-000000000000"  # an aggregate that no host is in


@dataclass(frozen=True)
class Prefilters:
    """Aggregates restricted to tenants, aggregates restricted to requests with their traits, and disabled
    cells.
    """

    of_tenant: Mapping[str, tuple[str, ...]] | None = None  # project → its aggregates; None: not enabled
    tenants_need_one: bool = False
    demanding: tuple[tuple[str, frozenset[str]], ...] = ()  # an aggregate, and the traits it demands
    closed: tuple[str, ...] = ()  # cells

    def narrow(self, alternative: Alternative) -> Alternative:
        """Return the `Wish` with the additional constraints, or with a refusal if no host can satisfy
        them.
        """
        question, notes = alternative.question, alternative.notes
        if self.of_tenant is not None:
            own = self.of_tenant.get(alternative.request.project)
            if own is None and self.tenants_need_one:
                own = (NOBODY,)
                notes = (*notes, f"no aggregate is for project {alternative.request.project} ({TENANT})")
            if own is not None:
                question = msgspec.structs.replace(question, root_member_of=(*question.root_member_of, own))
        if self.demanding:
            required = set(question.root_required).union(*(group.required for group in question.groups))
            barred = tuple(uuid for uuid, demands in self.demanding if not demands <= required)
            if barred:
                question = msgspec.structs.replace(
                    question, root_not_member_of=(*question.root_not_member_of, *barred)
                )
        if self.closed:
            question = msgspec.structs.replace(question, not_cells=self.closed)
        return (
            alternative
            if question is alternative.question
            else replace(alternative, question=question, notes=notes)
        )


def prefilters(
    aggregates: Iterable[Aggregate], options: RequestOptions, cells: Iterable[RegisteredCell] = ()
) -> Prefilters:
    """Return the constraints that follow from the aggregates, cells and settings."""
    tenants: dict[str, list[str]] = {}
    demanding = []
    for aggregate in sorted(aggregates, key=lambda one: one.id):
        projects: dict[str, None] = {}
        demands = set()
        for key, value in aggregate.metadata.items():
            if key.startswith(TENANT):
                projects |= dict.fromkeys(one.strip() for one in value.split(",") if one.strip())
            elif key.startswith("trait:") and value == "required":
                demands.add(key.removeprefix("trait:"))
        for project in projects:
            tenants.setdefault(project, []).append(aggregate.id)
        if demands:
            demanding.append((aggregate.id, frozenset(demands)))
    return Prefilters(
        {project: tuple(some) for project, some in tenants.items()} if options.tenant_aggregates else None,
        options.tenant_aggregates_required,
        tuple(demanding) if options.isolate_aggregates else (),
        tuple(sorted(cell.name for cell in cells if not cell.enabled)),
    )
