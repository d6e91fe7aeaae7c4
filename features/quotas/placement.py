"""The quotas' part of placement: the rule, its queries and edits, and the limits of Keystone."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Literal

from bus.worker import WorkerRows, answers
from features.quotas.limits import CachedLimits
from features.quotas.messages import EDIT_QUOTA, QUOTAS
from features.quotas.operations import QuotaOperations
from features.quotas.rule import QuotaRule
from features.quotas.settings import QuotaSettings
from placement_worker.extension import ForPlacement, OpenPlacement, PlacementNeeds, PlacementPart


def part(needs: PlacementNeeds, settings: QuotaSettings) -> PlacementPart:
    cache = CachedLimits(needs.database, needs.book)
    source: Literal["berth", "keystone"] = "keystone" if settings.cloud else "berth"

    def rows(placement: OpenPlacement) -> WorkerRows:
        holder_types = placement.claims.holder_types
        operations = QuotaOperations(*needs.operations, cache, needs.offers, holder_types, source)
        needs.offers.add(operations)
        return WorkerRows(
            answers=[answers(QUOTAS, operations.find), answers(EDIT_QUOTA, operations.edit)],
            runs=[_copying(settings.cloud, operations)] if settings.cloud else [],
        )

    return PlacementPart(rules=[QuotaRule(needs.book, cache)], offers=(cache,), rows=rows)


def _copying(cloud: str, operations: QuotaOperations) -> Callable[[], Coroutine[Any, Any, None]]:
    # imports an HTTP client, which loads slowly
    from features.quotas.keystone_limits import copying_limits

    return copying_limits(cloud, operations)


PART = ForPlacement(part)
