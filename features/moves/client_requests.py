"""Requests and queries of clients about moves of their instances."""

from dataclasses import dataclass

from bus.clients import Known, NotAllowed, Projects, RegisteredClient, check_project
from bus.errors import Unroutable
from bus.protocol import Ask
from features.moves.client_rules import permitted_move
from features.moves.messages import FindMoves, MoveRequested, MovesFound, MoveSteered


@dataclass(frozen=True)
class MovesOfClients:
    """Permits moves, and answers queries about them. `moves` asks the conductors of cells."""

    moves: Ask[FindMoves, MovesFound]

    async def permit_move(
        self, asked: MoveRequested, client: RegisteredClient, known: Projects
    ) -> MoveRequested:
        return permitted_move(asked, client, known)

    async def permit_steering(
        self, steer: MoveSteered, client: RegisteredClient, known: Projects
    ) -> MoveSteered:
        check_project(steer.build, client, known)
        try:
            found = await self.moves(FindMoves(cell=steer.cell, moves=(steer.move,)))
        except Unroutable:
            raise NotAllowed(f"cell {steer.cell} does not answer") from None
        if not any(move.build == steer.build for move in found.moves):
            raise NotAllowed("this build has no such move in this cell")
        return steer

    async def find(self, question: FindMoves, client: RegisteredClient, known: Known) -> MovesFound:
        if not question.moves and not question.builds:
            raise NotAllowed("moves: name the moves or builds")
        found = await self.moves(question)
        projects = await known((), {move.build for move in found.moves})
        mine = [move for move in found.moves if projects.get(move.build) in client.projects]
        return MovesFound(moves=tuple(mine))
