"""The groups' part of placement: the rules, and operations on server groups."""

from __future__ import annotations

from bus.worker import WorkerRows, answers, every, prune_period
from features.groups.messages import EDIT_GROUP, GROUPS
from features.groups.rule import GroupRule
from features.groups.settings import GroupSettings
from features.groups.store import ServerGroups
from features.groups.topology_rule import TopologyRule
from placement_worker.extension import ForPlacement, OpenPlacement, PlacementNeeds, PlacementPart


def part(needs: PlacementNeeds, settings: GroupSettings) -> PlacementPart:
    operations = ServerGroups(*needs.operations, settings)

    def rows(placement: OpenPlacement) -> WorkerRows:
        async def prune() -> None:
            await operations.prune(placement.oldest_kept())

        return WorkerRows(
            answers=[answers(GROUPS, operations.find), answers(EDIT_GROUP, operations.edit)],
            timers=[every(prune_period(placement.keep), prune)],
        )

    return PlacementPart(
        rules=[GroupRule(), TopologyRule(needs.database)],
        objects={"server_groups": "t.project"},
        offers=(operations,),
        rows=rows,
    )


PART = ForPlacement(part)
