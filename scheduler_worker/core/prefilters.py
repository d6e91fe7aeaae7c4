"""Limits of a search that follow from aggregates and cells."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from scheduler_worker.core.request import NOBODY, RequestOptions
from scheduler_worker.core.rule import Alternative

TENANT = "filter_tenant_id"  # also the prefix of further keys, because the length of a value is limited


@dataclass(frozen=True)
class Prefilters:
    """Limits that operators set for all requests: aggregates for certain projects or traits only, and
    disabled cells."""

    of_tenant: Mapping[str, tuple[str, ...]] | None = None  # project → its aggregates; None: no limits
    tenants_need_one: bool = False
    demanding: tuple[tuple[str, frozenset[str]], ...] = ()  # aggregate, the traits it requires
    closed: tuple[str, ...] = ()  # names of the disabled cells

    def narrow(self, alternative: Alternative) -> Alternative:
        """Return a flavor of a request with its search restricted to hosts that operators' limits permit."""
        question, notes = alternative.question, alternative.notes
        if self.of_tenant is not None:
            tenant_aggregates = self.of_tenant.get(alternative.request.project)
            if tenant_aggregates is None and self.tenants_need_one:
                tenant_aggregates = (NOBODY,)
                notes = (*notes, f"no aggregate is for project {alternative.request.project} ({TENANT})")
            if tenant_aggregates is not None:
                member_of = (*question.root_member_of, tenant_aggregates)
                question = msgspec.structs.replace(question, root_member_of=member_of)
        if self.demanding:
            # As in Nova, traits of the flavor and the image count here, but not traits that the request
            # itself requires.
            required = set(question.root_required).difference(alternative.request.root_required)
            required = required.union(*(group.required for group in question.groups))
            barred = tuple(uuid for uuid, demands in self.demanding if not demands <= required)
            if barred:
                not_member_of = (*question.root_not_member_of, *barred)
                question = msgspec.structs.replace(question, root_not_member_of=not_member_of)
        if self.closed:
            not_cells = tuple(dict.fromkeys((*question.not_cells, *self.closed)))
            question = msgspec.structs.replace(question, not_cells=not_cells)
        if question is alternative.question:
            return alternative
        return replace(alternative, question=question, notes=notes)


def listed(aggregate: Aggregate, key: str) -> list[str]:
    """Return the values, separated by commas, that an aggregate has for a metadata key."""
    text = aggregate.metadata.get(key)
    return [part.strip() for part in text.split(",") if part.strip()] if text else []


def prefilters(
    aggregates: Iterable[Aggregate], options: RequestOptions, cells: Iterable[RegisteredCell] = ()
) -> Prefilters:
    """Return the limits that operators set for all requests: by aggregates' metadata, disabled cells,
    settings."""
    tenants: dict[str, list[str]] = {}
    demanding = []
    for aggregate in sorted(aggregates, key=lambda item: item.id):
        projects: dict[str, None] = {}
        demands = set()
        for key, value in aggregate.metadata.items():
            if key.startswith(TENANT):
                projects |= dict.fromkeys(listed(aggregate, key))
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
