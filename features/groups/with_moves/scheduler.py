"""Looks up the server groups of instances that move: their new hosts must meet the policies, too."""

from collections.abc import Mapping, Sequence

from bus.protocol import Ask
from bus.vocabulary import Id, portions
from features.groups.messages import GROUPS, FindGroups, GroupPart, GroupsFound, group_of
from features.moves.core.start import MoveStart
from features.moves.lookups import MoveLookups
from scheduler_worker.extension import ForScheduler, SchedulerNeeds, SchedulerPart

GROUPS_ASKED = 500  # groups in one query to placement


class GroupsOfMoves:
    """Looks up the server groups of instances that move, so that their new hosts keep the policies."""

    def __init__(self, find: Ask[FindGroups, GroupsFound]) -> None:
        self._find = find

    async def parts_of(self, starts: Sequence[MoveStart]) -> Mapping[Id, GroupPart]:
        """Return the present server group of each instance. A shelved instance is in no group, so it joins
        the group of its boot request again, if this still exists.
        """
        builds = {start.asked.build for start in starts if start.seeks and start.keep}
        shelved = {start.asked.build: start for start in starts if _booted_in(start)}
        questions = [FindGroups(members=some) for some in portions(builds, GROUPS_ASKED)]
        if shelved:
            questions.append(FindGroups(ids=tuple(dict.fromkeys(map(_booted_in, shelved.values())))))
        answers = [await self._find(question) for question in questions]
        found = {group.id: group for answer in answers for group in answer.groups}
        groups = {build: group.id for group in found.values() for build in group.members if build in builds}
        for build, start in shelved.items():
            group = found.get(_booted_in(start))
            if group is not None and group.project == start.spec.project:
                groups[build] = group.id
        return {build: GroupPart(group=group) for build, group in groups.items()}


def _booted_in(start: MoveStart) -> Id:
    """Return the server group that the boot request of a shelved instance named; empty: none."""
    parts = start.original.parts
    return (group_of(parts) or "") if start.asked.kind == "unshelve" and parts is not None else ""


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    groups = GroupsOfMoves(needs.scheduler.placement.ask(GROUPS))
    needs.of(MoveLookups).parts_of.append(groups.parts_of)
    return SchedulerPart()


PART = ForScheduler(part)
