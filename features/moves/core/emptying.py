"""Decides which instances of the hosts of a plan are moved now, which stay, and when the hosts are empty."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bus.queries import Instance
from bus.vocabulary import Id
from features.moves.core.plan_moves import DONE, MovesOfPlan
from features.moves.messages import Emptying, MoveOfPlan

TIMES = 3  # attempts to move an instance that changes its state after it was listed
RETRY_SECONDS = 60.0  # between two attempts of a plan that keeps on
_SETTLING = ("building", "swapping", "deleting")
CHANGED = ("status", "moving")  # codes of refusals because the state of the instance changed


@dataclass(frozen=True)
class EmptyingStep:
    """The next step of a plan that empties hosts."""

    new: Sequence[Instance] = ()  # to be moved
    total: int = 0
    moved: int = 0
    gone: int = 0
    stay: Mapping[Id, str] = field(default_factory=dict)
    is_over: bool = False


def next_step(
    emptying: Emptying,
    there: Iterable[Instance],
    opened: Collection[Id],
    moves: MovesOfPlan,
    most: int,
    now: float,
) -> EmptyingStep:
    """Return the next step of a plan, from the instances that are `there` on its hosts, and its `moves`.
    `opened`: roots of hosts that are not closed for the cause of the plan any more. `most`: further moves.
    """
    on_hosts = {instance.build: instance for instance in there}
    ready: list[Instance] = []
    stay: dict[Id, str] = {}
    pending = bool(moves.in_progress)
    for build, instance in sorted(on_hosts.items()):
        if build in moves.in_progress:
            continue
        tried = moves.of_builds.get(build, ())
        if tried and emptying.keeps_on:
            if tried[-1].result != DONE and now - tried[-1].ended < RETRY_SECONDS:
                pending = True
                continue
        elif tried and (why := _why_it_stays(tried)):
            stay[build] = why
            continue
        if instance.root in opened:
            stay[build] = f"its host is not closed because of {emptying.because} any more"
        elif instance.status == "active":
            ready.append(instance)
        elif instance.status == "verifying" and not emptying.keeps_on:
            stay[build] = f"it waits to be confirmed (`berth move confirm {build}`)"
        elif instance.status in _SETTLING and not emptying.patient:
            stay[build] = f"{instance.status}: its cell sees to it"
        else:
            pending = True
    ended = moves.of_builds.keys() - moves.in_progress - on_hosts.keys()
    moved = sum(moves.of_builds[build][-1].result == DONE for build in ended)
    return EmptyingStep(
        new=ready[: max(most, 0)],
        total=len(on_hosts.keys() | moves.of_builds.keys()),
        moved=moved,
        gone=len(ended) - moved,
        stay=stay,
        is_over=not (pending or ready or emptying.keeps_on),
    )


def _why_it_stays(tried: Sequence[MoveOfPlan]) -> str:
    """Return why an instance stays after these attempts to move it; empty: it is tried again."""
    last = tried[-1]
    if last.result == DONE:
        return "it was moved, and is there again"
    if last.code in CHANGED and len(tried) <= TIMES:
        return ""
    return f"[{last.code}] {last.result}" if last.code else last.result
