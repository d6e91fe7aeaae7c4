"""Requests and queries of clients about moves of their instances."""

from dataclasses import dataclass

from bus.errors import Unroutable
from bus.parts import waits_since
from bus.projects import DERIVED, Known, NotAllowed, ProjectMember, Projects, check_project, is_derived, is_of
from bus.protocol import Ask
from features.moves.messages import FindMoves, MoveRequested, MovesFound, MoveSteered

# Rules of what a client may request about moves.


def permitted_move(asked: MoveRequested, client: ProjectMember, known: Projects) -> MoveRequested:
    """Return a client's request to move an instance; raise NotAllowed if the client may not send it. `known`
    maps the ids of the move and of its build to their projects.
    """
    check_project(asked.build, client, known)
    if not is_of(client, known.get(asked.move, known[asked.build])):
        raise NotAllowed("move: use a new uuid")
    if is_derived(asked.move):
        raise NotAllowed(f"move: {DERIVED}")
    if asked.forced_host:
        raise NotAllowed("forced_host: only operators bypass the filters; wanted_host names a host")
    if asked.kind == "evacuate":
        raise NotAllowed("kind: only operators evacuate a host")
    if waits_since(asked.parts):
        raise NotAllowed("since: only preempted instances keep the time of their first request")
    return asked


@dataclass(frozen=True)
class MovesOfClients:
    """Permits moves, and answers queries about them. `moves` asks the conductors of cells."""

    moves: Ask[FindMoves, MovesFound]

    async def permit_move(
        self, asked: MoveRequested, client: ProjectMember, known: Projects
    ) -> MoveRequested:
        return permitted_move(asked, client, known)

    async def permit_steering(
        self, steer: MoveSteered, client: ProjectMember, known: Projects
    ) -> MoveSteered:
        check_project(steer.build, client, known)
        try:
            found = await self.moves(FindMoves(cell=steer.cell, moves=(steer.move,)))
        except Unroutable:
            raise NotAllowed(f"cell {steer.cell} does not answer") from None
        if not any(move.build == steer.build for move in found.moves):
            raise NotAllowed("this build has no such move in this cell")
        return steer

    async def find(self, question: FindMoves, client: ProjectMember, known: Known) -> MovesFound:
        if not question.moves and not question.builds:
            raise NotAllowed("moves: name the moves or builds")
        found = await self.moves(question)
        projects = await known((), {move.build for move in found.moves})
        mine = [move for move in found.moves if projects.get(move.build) in client.projects]
        return MovesFound(moves=tuple(mine))
