"""Moves over the REST API: the limits of members and of limited roles, and records of acts."""

from features.moves.messages import MoveRequested
from features.moves.tests.support.rest import a_move
from tests.support.ids import uid
from tests.support.rest_region import BUILD, OTHER, TAKEN, WAITS, a_caller, a_region


async def test_a_move_is_recorded_with_its_request() -> None:
    async with a_region() as region:
        await region.send(a_caller("operator"), "POST", "/v1/moves", a_move(kind="resize", note="larger"))
        (record,) = await region.recorded()
        assert (record.act, record.target, record.project) == ("move", BUILD, "p1")
        assert '"note":"larger"' in record.asked


async def test_only_operators_evacuate() -> None:
    async with a_region() as region:
        member = a_caller("member", project="p1")
        assert (await region.send(member, "POST", "/v1/moves", a_move(kind="evacuate"))).status_code == 403
        assert region.cloud.published == []
        assert [record.outcome for record in await region.recorded()] == ["denied"]
        operator = a_caller("operator")
        assert (await region.send(operator, "POST", "/v1/moves", a_move(kind="evacuate"))).status_code == 202


async def test_the_id_of_a_move_is_not_the_id_of_an_instance_of_another_project() -> None:
    async with a_region() as region:
        for taken in (OTHER, TAKEN):
            for caller, status in ((a_caller("member", project="p1"), 403), (a_caller("operator"), 409)):
                answer = await region.send(caller, "POST", "/v1/moves", a_move(move=taken))
                assert answer.status_code == status


async def test_a_limited_role_acts_on_the_cell_of_the_instance_and_not_on_the_one_in_the_request() -> None:
    async with a_region() as region:
        of_c1, of_c2 = a_caller("operator", cells=("c1",)), a_caller("operator", cells=("c2",))
        assert (await region.send(of_c2, "POST", "/v1/moves", a_move(cell="c2"))).status_code == 403
        assert (await region.send(of_c1, "POST", "/v1/moves", a_move(to_cell="c2"))).status_code == 403
        assert (await region.send(of_c1, "POST", "/v1/moves", a_move(cell="c2"))).status_code == 202
        (move,) = region.cloud.published
        assert isinstance(move, MoveRequested)
        assert (move.cell, move.source) == ("c1", uid(9))  # refused if it is elsewhere by then
        assert (await region.send(of_c1, "POST", "/v1/moves", a_move(source="h2"))).status_code == 403


async def test_a_limited_role_gives_no_id_that_is_in_use_to_a_new_move() -> None:
    async with a_region() as region:
        of_c1 = a_caller("operator", cells=("c1",))
        for taken in (TAKEN, WAITS):  # a server group, and a request that waits in no cell
            assert (await region.send(of_c1, "POST", "/v1/moves", a_move(move=taken))).status_code == 403
