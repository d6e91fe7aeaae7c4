"""Moves over the REST API: the ids of moves."""

from features.moves.tests.support.rest import a_move
from tests.support.rest_region import OTHER, TAKEN, a_caller, a_region


async def test_the_id_of_a_move_is_not_the_id_of_an_instance_of_another_project() -> None:
    async with a_region() as region:
        for taken in (OTHER, TAKEN):
            for caller, status in ((a_caller("member", project="p1"), 403), (a_caller("operator"), 409)):
                answer = await region.send(caller, "POST", "/v1/moves", a_move(move=taken))
                assert answer.status_code == status
