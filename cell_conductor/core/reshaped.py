"""Applies a reshape of the host: the build holds the same resources on other providers.

The claim and its generation stay the same, so questions to placement are right without this.
"""

from msgspec.structs import replace

from bus.build_orders import reshaped_mappings
from bus.claims import Choice, Held
from bus.messages import BuildReshaped
from bus.vocabulary import Allocations
from cell_conductor.core.build import Build


def reshaped(build: Build, told: BuildReshaped) -> Build:
    """Apply placement's new allocations. An old reshape, or of an earlier claim, changes nothing."""
    if build.placed is None or build.generation is None or told.number <= build.reshaped:
        return build
    if told.generation == build.generation and told.root == build.host.root:
        return replace(holding(build, build.at, told.allocations), reshaped=told.number)
    if told.generation > build.generation:  # of a swap with its answer still on the way
        for position in _asked_for(build):
            if build.hosts[position].root == told.root:
                return replace(holding(build, position, told.allocations), reshaped=told.number)
    return build


def _asked_for(build: Build) -> tuple[int, ...]:
    """Return the positions of hosts that the build may get next."""
    source = () if build.moving is None else (build.moving.source,)
    return (*range(build.at + 1, len(build.hosts)), *source)


def position_of(build: Build, held: Held) -> int | None:
    """Return the position of the host that placement has, from the current one on, if any."""
    if not held.allocations:
        return None
    hosts = build.hosts
    order = (*range(build.at + 1, len(hosts)), build.at)
    same = (at for at in order if hosts[at].choice.allocations == held.allocations)
    there = (at for at in order if hosts[at].root in held.roots)
    return next(same, next(there, None))


def holding(build: Build, position: int, allocations: Allocations) -> Build:
    """Return the build with these allocations on one of its hosts. They are not claimed again, so shapes do
    not matter.
    """
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
