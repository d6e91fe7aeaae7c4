"""Lets victims be shelved, and leaves instances that are in a move where they are."""

from typing import Any

from cell_conductor.extension import Build, ConductorNeeds, ConductorPart, ForConductor
from features.moves.core.beginning import begins
from features.moves.core.phases import MoveImpossible, held, move_in_progress, of_kernel
from features.moves.messages import MovePlaced
from features.preemption.core.courses import VictimCourse


class MovesShelf:
    """Shelves victims as the feature moves does."""

    def is_moving(self, build: Build) -> bool:
        """Return whether the build moves, so that it cannot be preempted at present."""
        return move_in_progress(build.parts) is not None

    def shelved(self, build: Build) -> Build:
        """Return the build as shelved: it waits without a host and is built again later."""
        return held(build, "shelved", generation=None)

    def off_shelf(self, build: Build) -> Build:
        """Return a shelved build as deleted."""
        return of_kernel(build, "deleted")

    def takes(self, build: Build, event: Any) -> bool:
        """Return whether the event begins a move that takes the build off the shelf."""
        placed = event.placed if isinstance(event, MoveImpossible) else event
        return isinstance(placed, MovePlaced) and begins(build, placed)


def part(needs: ConductorNeeds, settings: None) -> ConductorPart:
    needs.of(VictimCourse).shelf = MovesShelf()
    return ConductorPart()


PART = ForConductor(part)
