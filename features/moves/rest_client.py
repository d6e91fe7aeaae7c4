"""The operations of the REST API on moves, for Python programs."""

from berth.kit import RestClient
from features.moves.messages import MoveRequested, Steering
from features.moves.rest_bodies import MoveAccepted, MoveDetails, SteerRequested


class MovesClient(RestClient):
    """A client of the REST API that also moves instances."""

    async def move(self, request: MoveRequested) -> MoveAccepted:
        return await self.send(MoveAccepted, "POST", "/v1/moves", body=request)

    async def shown_move(self, id_: str) -> MoveDetails:
        return await self.send(MoveDetails, "GET", f"/v1/moves/{id_}")

    async def steer(self, move: str, to: Steering) -> MoveAccepted:
        return await self.send(MoveAccepted, "POST", f"/v1/moves/{move}/steer", body=SteerRequested(to=to))
