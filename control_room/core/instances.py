"""Merges the answers of all cells about instances into one page."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from bus.queries import Instance, InstancesFound
from control_room.kit.replies import Reply


@dataclass(frozen=True)
class ListedInstances:
    """A page of instances in all cells, sorted by id."""

    instances: Sequence[Instance]
    count: int  # in the cells that answered
    more: str  # `after` of the next page; empty: this is the last page
    silent: Sequence[str] = field(default=())  # cells that did not answer


def merged(replies: Sequence[Reply[InstancesFound]], most: int) -> ListedInstances:
    """Merge the cells' pages of instances into one page of at most `most`, sorted by id."""
    answers = [reply.answer for reply in replies if reply.answer is not None]
    every = sorted((one for answer in answers for one in answer.instances), key=lambda one: one.build)
    cut = len(every) > most or any(answer.more for answer in answers)
    shown = every[:most]
    return ListedInstances(
        instances=shown,
        count=sum(answer.count for answer in answers),
        more=shown[-1].build if cut and shown else "",
        silent=[reply.source for reply in replies if reply.problem],
    )
