"""What a build knows of what it holds, once its host has another tree: the same, of other providers of it.

Its claim is the same, so its generation is: whatever is asked of placement meanwhile is right without this.
"""

from msgspec.structs import replace

from bus.build_orders import reshaped_mappings
from bus.claims import Choice, Held
from bus.messages import BuildReshaped
from bus.vocabulary import Allocations
from cell_conductor.core.build import Build


def reshaped(build: Build, told: BuildReshaped) -> Build:
    """Placement says what it holds now. What is old, or of a claim it has left, changes nothing."""
    if build.placed is None or build.generation is None or told.number <= build.reshaped:
        return build
    if told.generation == build.generation and told.root == build.host.root:
        return replace(holding(build, build.at, told.allocations), reshaped=told.number)
    if told.generation > build.generation:  # of a swap whose answer is still on its way
        for position in _asked_for(build):
            if build.hosts[position].root == told.root:
                return replace(holding(build, position, told.allocations), reshaped=told.number)
    return build


def _asked_for(build: Build) -> tuple[int, ...]:
    """The positions it may be given next."""
    source = () if build.moving is None else (build.moving.source,)
    return (*range(build.at + 1, len(build.hosts)), *source)


def position_of(build: Build, held: Held) -> int | None:
    """Which of its hosts, from the one it is on, placement has it on; None: none of them."""
    if not held.allocations:
        return None
    hosts = build.hosts
    order = (*range(build.at + 1, len(hosts)), build.at)
    same = (at for at in order if hosts[at].choice.allocations == held.allocations)
    there = (at for at in order if hosts[at].root in held.roots)
    return next(same, next(there, None))


def holding(build: Build, position: int, allocations: Allocations) -> Build:
    """This one of its hosts is held by these allocations. It is not claimed again, so no shape matters."""
    one = build.hosts[position]
    if one.choice.allocations == allocations:
        return build
    mappings = reshaped_mappings(one.mappings, one.choice.allocations, allocations)
    one = replace(one, choice=Choice(allocations=allocations), mappings=mappings)
    placed = build.as_placed
    if position == 0:
        return replace(build, placed=replace(placed, chosen=one))
    beyond = position - 1 - len(placed.alternates)
    if beyond >= 0:
        return replace(build, moved=(*build.moved[:beyond], one, *build.moved[beyond + 1 :]))
    others = (*placed.alternates[: position - 1], one, *placed.alternates[position:])
    return replace(build, placed=replace(placed, alternates=others))
